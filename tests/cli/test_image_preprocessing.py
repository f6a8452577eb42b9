"""Pictures in more than eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from smelt.cli._image_preprocessing import ImagePreprocessing, image_to_array

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
