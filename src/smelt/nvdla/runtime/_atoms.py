"""Byte offsets of tensors whose channels are stored in atoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.types import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AtomLayout:
    """Layout in memory of a tensor of channels, lines and columns; strides are in bytes."""

    extents: tuple[int, int, int]
    """Numbers of channels, lines and columns."""
    strides: tuple[int, int]
    """Bytes between lines, and between surfaces."""
    lanes: int
    """Number of channels that are contiguous in an atom."""
    element_bytes: int
    start: int = 0
    """Offset of the first element in bytes."""

    def byte_offsets(self, size_bytes: int, what: str) -> NDArray[np.int64]:
        """Return the offset of every byte of the tensor, [channel, line, column, byte].

        Args:
            size_bytes: Size of the memory that holds the tensor.
            what: Name of the tensor in error messages.

        Raises:
            NvdlaError: INVALID_SIZE if the elements need more bytes than the memory has;
                INVALID_ADDRESS if an element lies outside the memory.
        """
        channels, height, width = self.extents
        line_stride, surface_stride = self.strides
        needed = channels * height * width * self.element_bytes
        if min(self.extents) < 0 or needed > size_bytes:
            raise NvError.INVALID_SIZE.error(
                f"{what} of {channels}x{height}x{width} elements of "
                f"{counted(self.element_bytes, 'byte')} does not fit into memory of {size_bytes} "
                "bytes"
            )
        channel = np.arange(channels, dtype=np.int64)
        surface, lane = channel // self.lanes, channel % self.lanes
        offset = (
            self.start
            + (surface * surface_stride + lane * self.element_bytes)[:, None, None, None]
            + (np.arange(height, dtype=np.int64) * line_stride)[:, None, None]
            + (np.arange(width, dtype=np.int64) * self.lanes * self.element_bytes)[:, None]
            + np.arange(self.element_bytes)
        )
        if offset.size and int(offset.max()) >= size_bytes:
            raise NvError.INVALID_ADDRESS.error(
                f"{what} accesses byte {int(offset.max())}, outside its memory of {size_bytes} "
                "bytes"
            )
        return offset
