"""What a file repeats costs a reader time in proportion: the promise is 10 seconds for any file."""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING

import pytest

import smelt
from smelt.devices import DeviceName
from smelt.nvdla.traces._parse import parse_data
from smelt.types import read_array

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 10


def _array_header(folder: Path) -> object:
    """Digits without commas: the pattern of the header once tried every way to group them."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 64 + b"), }!\n"
    path = folder / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    return read_array(path)


def _backslashes(folder: Path) -> object:
    """One string of backslashes, which protobuf unescapes in quadratic time."""
    path = folder / "net.prototxt"
    path.write_text('name: "' + "\\" * 400_000 + '"\n')
    return smelt.network_from_caffe(path, b"")


def _blanks_in_data(folder: Path) -> object:
    """Blanks behind the colon of a row of NVDLA data."""
    return parse_data(b"{offset:0, size:4, payload:" + b" " * 400_000 + b"}", 1 << 20)


def _digits_in_device(folder: Path) -> object:
    """Digits in the name of a device, which an engine's header may hold."""
    return DeviceName.from_text("0" * 400_000 + "x")


@pytest.mark.parametrize("read", [_array_header, _backslashes, _blanks_in_data, _digits_in_device])
def test_a_reader_takes_time_in_proportion_to_what_is_repeated(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    start = time.process_time()
    # A reader of arrays raises ValueError: its callers say where.
    with contextlib.suppress(smelt.SmeltError, ValueError):
        read(tmp_path)
    assert time.process_time() - start < SECONDS


def test_adjacent_bytes_of_data_are_told_apart() -> None:
    assert parse_data(b"{offset:0, size:2, payload:0x120x34}", 16) == [(0, b"\x12\x34")]
    assert parse_data(b"0x12 0x340x56\n", 16) == [(0, b"\x12\x34\x56")]
