"""Whatever is refused costs little: sparse files of gigabytes, which cost nothing to make."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

_MEMORY_KB = 5 << 20
"""Of addresses; python, numpy and llvmlite take a gigabyte of them before they do anything."""
_SECONDS = 120
_LARGE_BYTES = 6 << 30

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")


def _refused(*arguments: object) -> str:
    """What ``smelt`` says, which is an error of its own, with less memory than a file has bytes."""
    limits = f'ulimit -v {_MEMORY_KB}; ulimit -t {_SECONDS}; exec "$@"'
    command = [sys.executable, "-m", "smelt", *map(str, arguments)]
    done = subprocess.run(
        ["/bin/sh", "-c", limits, "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "memory" not in line
    return line


def _sparse_array(path: Path, dtype: str, shape: tuple[int, ...]) -> Path:
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        os.truncate(path, file.tell() + size)
    return path


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("<f4", (_LARGE_BYTES // 4,)), ("<f4", (1, 3, 16, _LARGE_BYTES // 192)), ("<i4", (1 << 30,))],
)
@pytest.mark.parametrize("command", ["run", "bench", "compare"])
@pytest.mark.slow
def test_a_large_array_is_refused_by_its_header(
    engine: Path, model: Path, tmp_path: Path, command: str, dtype: str, shape: tuple[int, ...]
) -> None:
    array = _sparse_array(tmp_path / "x.npy", dtype, shape)
    subject = model if command == "compare" else engine
    assert "image" in _refused(command, subject, "--input", f"image={array}")


def test_a_large_array_of_another_type_is_refused_by_its_header(
    engine: Path, tmp_path: Path
) -> None:
    array = _sparse_array(tmp_path / "x.npy", "<i4", (1, 3, 16, 16))
    assert "has type int32, but input image takes float32" in _refused(
        "run", engine, "--input", f"image={array}"
    )


def test_a_large_mean_is_refused_by_its_header(engine: Path, picture: Path, tmp_path: Path) -> None:
    array = _sparse_array(tmp_path / "mean.npy", "<f4", (3, 1 << 14, 1 << 15))
    detail = _refused("run", engine, "--image", picture, "--mean", array)
    assert "MAX_IMAGE_PIXELS is 104,857,600" in detail


def test_large_recorded_outputs_are_refused_by_their_header(model: Path, tmp_path: Path) -> None:
    array = _sparse_array(tmp_path / "golden.npy", "<f4", (1, _LARGE_BYTES // 4))
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((1, 3, 16, 16), np.float32))
    detail = _refused("compare", model, "--against", array, "--input", f"image={x}")
    assert "output 'prob' is" in detail


@pytest.mark.parametrize("rest", [0, 1])
def test_an_engine_that_ends_elsewhere_than_its_file_is_refused_before_it_is_copied(
    engine: Path, tmp_path: Path, rest: int
) -> None:
    """Its first section has gigabytes, and what follows is wrong: too short, or with a rest."""
    prefix = struct.Struct("<8sIIQQ32x")
    content = engine.read_bytes()
    magic, version, reserved, length, _ = prefix.unpack(content[: prefix.size])
    header = json.loads(content[prefix.size : prefix.size + length])
    at = header["sections"][0]["offset"] + _LARGE_BYTES
    header["sections"][0]["size"] = _LARGE_BYTES
    for row in header["sections"][1:]:
        row |= {"offset": at, "size": 4096}
        at += 4096
    total = at + (rest or -4096)
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length
    path = tmp_path / "sparse.engine"
    path.write_bytes(prefix.pack(magic, version, reserved, length, total) + text + bytes(128))
    os.truncate(path, total)
    detail = _refused("run", path, "--input", "image=zeros")
    assert ("1 byte after the last section" if rest else "is at a wrong offset") in detail
