"""Odd files, buffers and limits of the system end in errors of smelt's, wherever they are met."""

from __future__ import annotations

import _thread
import io
import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import errors, ops
from smelt.devices.cpu import CpuStream
from smelt.engine import show_trusted_keys, user_signer, write_atomically
from smelt.ir import Graph
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _graph() -> Graph:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (64, 64)))
    graph.outputs.extend(graph.add(ops.Relu(), x, name="relu").outputs)
    return graph


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that lets nobody in, as it is to a user who is not root."""
    folder = tmp_path / "locked"
    folder.mkdir()
    for name in ("stat", "lstat", "open", "scandir", "mkdir"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name), folder))
    return folder


def _refusing(real: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **words: Any) -> Any:
        if not isinstance(path, int) and str(path).startswith(f"{folder}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **words)

    return call


LOCKED: dict[str, Callable[[Path], object]] = {
    "write": lambda path: write_atomically(path, iter([b"x"])),
    "load": smelt.load,
    "onnx": smelt.network_from_onnx,
    "caffe": smelt.network_from_caffe,
}


@pytest.mark.parametrize("taker", LOCKED)
def test_a_locked_folder_is_an_error_of_ours(taker: str, locked: Path) -> None:
    with pytest.raises(errors.SmeltError, match="Permission denied"):
        LOCKED[taker](locked / "file")


def test_a_timing_cache_in_a_locked_folder_is_not_kept(
    locked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    smelt.build(_graph(), tune="none", timing_cache=locked / "timings").close()
    assert "Permission denied" in caplog.text


def test_a_trusted_key_in_a_locked_folder_is_left_out(
    locked: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = show_trusted_keys()
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(locked / "odd.pub"))
    assert show_trusted_keys() == known
    assert "Permission denied" in caplog.text


class _Failing(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise EOFError("cut off")


def _closed() -> io.BytesIO:
    file = io.BytesIO(b"x")
    file.close()
    return file


def test_a_file_that_cannot_be_read_is_no_engine(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with (
        (tmp_path / "x").open(encoding="utf-8") as text,
        (tmp_path / "y").open("wb") as written,
    ):
        for file in (_closed(), text, written, _Failing(), io.StringIO("x")):
            with pytest.raises(errors.EngineFormatError):
                smelt.load(file)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_file_that_cannot_be_written_takes_no_engine(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with (
        smelt.build(_graph(), tune="none") as engine,
        (tmp_path / "x").open("rb") as read,
        (tmp_path / "y").open("w", encoding="utf-8") as text,
    ):
        for file in (_closed(), read, text):
            with pytest.raises(errors.SmeltError, match="cannot be written"):
                engine.save(file)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("taker", [smelt.load, smelt.network_from_onnx, smelt.network_from_caffe])
def test_a_buffer_without_bytes_is_refused(taker: Callable[[Any], object]) -> None:
    released = memoryview(bytearray(b"abc"))
    released.release()
    for buffer in (released, np.zeros((4, 4), np.uint8).data[::2]):
        with pytest.raises(errors.SmeltError):
            taker(buffer)


def test_every_buffer_is_a_caffe_file() -> None:
    text = b'name: "n" input: "x" input_shape { dim: 1 } layer { name: "r" type: "ReLU" '
    text += b'bottom: "x" top: "y" }'
    for source in (text, bytearray(text), memoryview(text)):
        smelt.network_from_caffe(source)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_name_of_the_user_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER"):
        monkeypatch.setenv(variable, "me\n\x1b[2J\u202egpj")
    assert user_signer() is not None
    (own,) = (key for key in show_trusted_keys() if key.origin == "own")
    assert own.text.isprintable()
    assert own.label.isprintable()


@pytest.fixture(params=["refused", "ends at once"])
def no_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread starts, or each ends before its first instruction, for lack of memory."""

    def start(*_: object) -> int:
        if request.param == "refused":
            raise RuntimeError("can't start new thread")
        return 0

    monkeypatch.setattr(_thread, "start_new_thread", start)


@pytest.mark.usefixtures("no_threads")
def test_a_run_has_fewer_threads_where_the_system_starts_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    with (
        smelt.build(_graph(), tune="none") as engine,
        caplog.at_level(logging.WARNING),
        engine.create_context(threads=901) as context,
    ):
        (y,) = context.run({"x": x}).values()
    assert np.array_equal(y, np.maximum(x, 0))


@pytest.mark.usefixtures("no_threads")
def test_a_build_needs_no_threads() -> None:
    smelt.build(_graph(), tune="none").close()


@pytest.mark.usefixtures("no_threads")
def test_a_stream_without_a_thread_says_so() -> None:
    with CpuStream() as stream:
        with pytest.raises(errors.DeviceError, match="use fewer threads, or raise the limits"):
            stream.submit(list)
        assert stream.query()
