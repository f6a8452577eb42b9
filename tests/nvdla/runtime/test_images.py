"""DIMG files are read and written as the official runtime does."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import ModelFormatError
from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.loadable import DataType
from smelt.nvdla.runtime import Dims4, DlaImage, ImageFormat, NvDlaTensor, image_from_tensor

if TYPE_CHECKING:
    from pathlib import Path


def _tensor(data_type: int, dims: tuple[int, int, int], *strides: int, size: int) -> NvDlaTensor:
    channel, height, width = dims
    padded = (*strides, *(0,) * (8 - len(strides)))
    return NvDlaTensor("t", size, Dims4(1, channel, height, width), 3, data_type, 2, 36, 0, padded)


def test_every_golden_image_survives_a_round_trip(shared: Path) -> None:
    files = sorted((shared / "nvdla" / "golden").glob("*/dla/*.dimg"))
    assert len(files) == 15
    for file in files:
        data = file.read_bytes()
        image = DlaImage.from_bytes(data)
        assert image.to_bytes() == data, file
        assert image.to_array().shape == (image.channel, image.height, image.width)


def test_an_image_is_gathered_by_channel_line_and_column() -> None:
    memory = np.arange(2 * 3 * 32, dtype=np.uint8)
    tensor = _tensor(DataType.INT8, (33, 1, 3), 1, 96, 96, size=192)
    image = image_from_tensor(tensor, memory)
    expected = [(c // 32 * 96 + x * 32 + c % 32) & 255 for c in range(33) for x in range(3)]
    assert image.elements == bytes(expected)
    assert image.format is ImageFormat.F8_CXHWX_X32_I


def test_surfaces_of_8_channels_are_read_overlapping_as_the_goldens_are() -> None:
    memory = np.random.default_rng(0).integers(0, 256, 2048).astype(np.uint8)
    tensor = _tensor(DataType.INT8, (32, 8, 8), 1, 64, 512, size=2048)
    image = image_from_tensor(tensor, memory)
    array = np.frombuffer(image.elements, np.uint8).reshape(32, 8, 8)
    assert array[31, 7, 7] == memory[7 * 64 + 7 * 32 + 31]
    assert struct.unpack_from("<I", image.to_bytes(), 8) == (40,)


def test_a_written_image_reads_back() -> None:
    memory = np.zeros(4096, np.uint8)
    tensor = _tensor(DataType.INT16, (20, 4, 5), 2, 160, 640, size=1280)
    elements = np.random.default_rng(1).integers(0, 256, 20 * 4 * 5 * 2).astype(np.uint8).tobytes()
    image = DlaImage(ImageFormat.F16_CXHWX_X16_I, 5, 4, 20, 160, 640, 1280, elements)
    image.write_to(memory)
    assert image_from_tensor(tensor, memory) == image


def test_the_stable_hash_replaces_what_the_official_one_does() -> None:
    halves = np.array([32768.0, -0.0, np.nan, 1.5] + [0] * 12, np.float16)
    tensor = _tensor(DataType.HALF, (4, 1, 1), 2, 32, 32, size=32)
    memory = halves.view(np.uint8)
    stable = np.frombuffer(image_from_tensor(tensor, memory).elements, np.float16)
    assert stable.tolist() == [0.0, -0.0, 31744.0, 1.5]
    plain = image_from_tensor(tensor, memory, stable_hash=False)
    assert plain.elements == memory[:8].tobytes()


def test_format_numbers_moved_in_2019() -> None:
    old = DlaImage(ImageFormat.F16_CXHWX_X16_F, 1, 1, 1, 32, 32, 32, b"\0\0")
    new = DlaImage(
        ImageFormat.F16_CXHWX_X16_F, 1, 1, 1, 32, 32, 32, b"\0\0", uses_2018_numbers=False
    )
    assert old.to_bytes()[8] == 42
    assert new.to_bytes()[8] == 43
    assert DlaImage.from_bytes(new.to_bytes(), uses_2018_numbers=False) == new
    with pytest.raises(NvdlaError) as caught:
        DlaImage(ImageFormat.F8_CXHWX_X8_I, 1, 1, 1, 8, 8, 8, b"\0").to_bytes()
    assert caught.value.status is NvError.NOT_SUPPORTED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"DIMG",
        struct.pack("<4sI7I", b"PNG\0", 0, 40, 1, 1, 1, 1, 1, 1) + b"x",
        struct.pack("<4sI7I", b"DIMG", 1, 40, 1, 1, 1, 1, 1, 1) + b"x",
        struct.pack("<4sI7I", b"DIMG", 0, 99, 1, 1, 1, 1, 1, 1) + b"x",
        struct.pack("<4sI7I", b"DIMG", 0, 40, 1, 1, 1, 1, 1, 1),
        struct.pack("<4sI7I", b"DIMG", 0, 40, 2**32 - 1, 2**32 - 1, 2**32 - 1, 1, 1, 1) + b"x",
    ],
)
def test_a_malformed_image_is_refused(data: bytes) -> None:
    with pytest.raises(ModelFormatError):
        DlaImage.from_bytes(data)


@pytest.mark.parametrize(
    ("tensor", "status"),
    [
        (_tensor(DataType.INT8, (32, 8, 8), 1, 256, 2048, size=2047), NvError.INVALID_SIZE),
        (_tensor(DataType.INT8, (32, 8, 8), 1, 2**31, 1, size=2048), NvError.INVALID_ADDRESS),
        (
            _tensor(DataType.INT8, (2**31 - 1, 2**31 - 1, 2**31 - 1), 1, 0, 0, size=2048),
            NvError.INVALID_SIZE,
        ),
        (_tensor(DataType.INT8, (-1, 1, 1), 1, 0, 0, size=2048), NvError.INVALID_SIZE),
        (_tensor(DataType.FLOAT, (1, 1, 1), 1, 0, 0, size=2048), NvError.NOT_SUPPORTED),
    ],
)
def test_a_tensor_outside_its_memory_is_refused(tensor: NvDlaTensor, status: NvError) -> None:
    with pytest.raises(NvdlaError) as caught:
        image_from_tensor(tensor, np.zeros(2048, np.uint8))
    assert caught.value.status is status
