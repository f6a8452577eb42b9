"""What cannot be a path is told so by an error of smelt's, wherever a path is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import smelt
from smelt import errors
from smelt.compare import compare
from smelt.engine import add_trusted_key, show_trusted_keys, write_atomically
from smelt.importers.caffe import read_mean
from smelt.ir import Graph
from smelt.nvdla.port import SocketPort
from smelt.nvdla.traces import find_traces
from smelt.ops import Relu
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _PathOfBytes:
    def __fspath__(self) -> bytes:
        return b"x"


NO_PATHS = ["a" * 300, "a/" * 3000, "x\0y", "\ud800", _PathOfBytes(), 5, ["x"]]


def _graph() -> Graph:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2,)))
    graph.outputs.extend(graph.add(Relu(), x, name="relu").outputs)
    return graph


TAKERS: dict[str, Callable[[Any], object]] = {
    "write_atomically": lambda path: write_atomically(path, iter([b"x"])),
    "add_trusted_key": add_trusted_key,
    "load": smelt.load,
    "network_from_onnx": smelt.network_from_onnx,
    "network_from_caffe": smelt.network_from_caffe,
    "read_mean": read_mean,
    "find_traces": find_traces,
    "socket": SocketPort,
    "timing_cache": lambda path: smelt.build(_graph(), tune="none", timing_cache=path),
    "against": lambda path: compare(_graph(), path, tune="none"),
}


@pytest.mark.parametrize("path", NO_PATHS, ids=lambda path: ascii(path)[:12])
@pytest.mark.parametrize("taker", TAKERS)
def test_what_cannot_be_a_path_is_refused(
    taker: str, path: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.SmeltError):
        TAKERS[taker](path)
    assert not list(tmp_path.iterdir())


def test_trusted_keys_at_no_path_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = show_trusted_keys()
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", "a" * 300)
    assert show_trusted_keys() == known
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", "~no_such_user_here/keys")
    with pytest.raises(errors.SmeltError, match="SMELT_TRUSTED_KEYS"):
        show_trusted_keys()
