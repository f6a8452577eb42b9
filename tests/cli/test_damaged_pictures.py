"""Pictures and means that are damaged, or not what they should be, end in one line."""

from __future__ import annotations

import base64
import subprocess
import sys
from typing import TYPE_CHECKING, Any

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


_WITHIN_MEMORY = """
import resource, sys
from pathlib import Path
from PIL import Image
from smelt.cli._image_preprocessing import ImagePreprocessing, _decode
from smelt.types import Limit

path, small, channels = sys.argv[1], sys.argv[2], int(sys.argv[3])
_decode(small, channels)  # loads the libraries of the format
with Image.open(path) as file:
    count = file.width * file.height
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
allowed = 1.8e9 * count / Limit.MAX_IMAGE_PIXELS.most
resource.setrlimit(resource.RLIMIT_AS, (used + int(allowed), resource.RLIM_INFINITY))
_decode(path, channels)
"""
"""Decodes a picture in the share of 1.8 GB that its pixels are of the largest picture."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "suffix", "options"),
    [
        ("RGB", "webp", {"lossless": True, "quality": 0, "method": 0}),
        ("RGBA", "webp", {"quality": 1, "method": 0}),
        ("CMYK", "jpg", {"progressive": True}),
        ("I;16", "png", {"compress_level": 1}),
    ],
)
@pytest.mark.slow
def test_the_largest_picture_is_decoded_in_less_than_two_gigabytes(
    tmp_path: Path, mode: str, suffix: str, options: dict[str, Any], channels: int
) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    paths = [tmp_path / f"{extent}.{suffix}" for extent in (4096, 16)]
    for path in paths:
        extent = int(path.stem)
        Image.new(mode, (extent, extent)).save(path, exif=exif.tobytes(), **options)
    command = [sys.executable, "-c", _WITHIN_MEMORY, *map(str, paths), str(channels)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_a_picture_for_which_there_is_no_memory_is_an_error_of_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image, ImageOps

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    path = tmp_path / "picture.png"
    Image.new("RGB", (8, 8)).save(path)
    monkeypatch.setattr(ImageOps, "exif_transpose", refuse)
    with pytest.raises(SmeltError, match=r"not enough memory to decode .*picture\.png"):
        image_to_array(str(path), (1, 3, 8, 8), np.dtype("float32"), _preparation())
