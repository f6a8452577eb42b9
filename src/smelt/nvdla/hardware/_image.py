"""CDMA's image mode: pixels in 36 formats to channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    import numpy as np

    from smelt.nvdla.hardware._configuration import Precision
    from smelt.nvdla.hardware._operation import Operation


def read_image(operation: Operation, precision: Precision) -> np.ndarray:
    """Return pixels [height, width, channels], converted."""
    raise NvdlaError(NvError.NOT_SUPPORTED, "image")
