"""Pictures in more than eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from smelt.cli._image_preprocessing import ImagePreprocessing, image_to_array
from smelt.errors import ModelFormatError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_of_grey_become_eight_and_are_not_clipped(
    tmp_path: Path, channels: int
) -> None:
    path = tmp_path / "grey.png"
    Image.fromarray(np.array([[0, 16448], [32896, 65535]], np.uint16)).save(path)
    shape = (1, channels, 2, 2)
    made = image_to_array(str(path), shape, np.dtype(np.float32), ImagePreprocessing())
    for plane in made.reshape(channels, 4):
        assert plane.tolist() == [0, 64, 128, 255]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_integers_are_clipped_at_the_limits_of_their_type(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "white.png"
    Image.fromarray(np.full((2, 2), 255, np.uint8)).save(path)
    limits = np.iinfo(dtype)
    for scale, most in ((1e20, limits.max), (-1e20, limits.min)):
        preprocessing = ImagePreprocessing(scale=(scale,))
        made = image_to_array(str(path), (1, 1, 2, 2), np.dtype(dtype), preprocessing)
        assert made.ravel().tolist() == [most] * 4


def test_a_mean_without_axes_is_refused(tmp_path: Path) -> None:
    picture, mean = tmp_path / "white.png", tmp_path / "mean.binaryproto"
    Image.fromarray(np.full((2, 2), 255, np.uint8)).save(picture)
    mean.write_bytes(bytes.fromhex("3a00 2d 0000803f"))  # shape {} data: 1.0
    preprocessing = ImagePreprocessing(mean=str(mean))
    with pytest.raises(ModelFormatError, match="has no mean image"):
        image_to_array(str(picture), (1, 1, 2, 2), np.dtype(np.float32), preprocessing)
