"""Pictures and means that are damaged, or not what they should be, end in one line."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.cli._image_preprocessing import ImagePreprocessing, image_to_array
from smelt.errors import SmeltError

if TYPE_CHECKING:
    from pathlib import Path

_STRIP_OF_FLOATS = (
    "SUkqAAgAAAAKAAABBAABAAAACwAAAAEBBAABAAAACQAAAAIBAwADAAAAhgAAAAMBAwABAAAAAQAAAAYBAwABAAAAAgAAABEB"
    "DAABAAAAjAAAABUBAwABAAAAAwAAABYBBAABAAAACQAAABcBBAABAAAAKQEAABwBAwABAAAAAQAAAAAAAAAIAAgACACiRAoE"
    "z+iaANoIuizcikxrBx+rpZxh/vqupa9jIreFT3vi7luRUpdWY+M5nhXU"
)
"""A TIFF whose strip offset is a float: pillow raises a TypeError."""


def _preparation(mean: str | None = None) -> ImagePreprocessing:
    return ImagePreprocessing("exact", "auto", "area", "bgr", mean, (1.0,), "auto")


def test_whatever_the_decoder_raises_is_an_error_of_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "picture.tiff"
    path.write_bytes(base64.b64decode(_STRIP_OF_FLOATS))
    with pytest.raises(SmeltError, match="is a damaged picture: "):
        image_to_array(str(path), (1, 3, 8, 8), np.dtype("float32"), _preparation())


def test_a_line_of_means_that_are_not_one_for_each_channel_is_refused_by_its_header(
    tmp_path: Path,
) -> None:
    from PIL import Image

    picture, mean = tmp_path / "picture.png", tmp_path / "mean.npy"
    Image.new("RGB", (8, 8)).save(picture)
    with mean.open("wb") as file:  # a hole: the elements are not read
        header = {"descr": "|i1", "fortran_order": False, "shape": (400_000_000,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 400_000_000)
    with pytest.raises(SmeltError, match="400000000 numbers; the input has 3 channels"):
        image_to_array(str(picture), (1, 3, 8, 8), np.dtype("float32"), _preparation(str(mean)))
