"""DIMG files: what the official runtime reads and writes, and the regression compares.

The number of a format moved in 2019, when atoms of 8 channels were added; the regression's files
have the numbers of 2018.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from smelt.errors import ModelFormatError
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import DataCategory, DataType
from smelt.nvdla.runtime._atoms import AtomLayout
from smelt.nvdla.runtime._enums import PixelFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from smelt.nvdla.port import Bytes
    from smelt.nvdla.runtime._tensor import NvDlaTensor

_MAGIC: Final = b"DIMG"
_HEAD: Final = struct.Struct("<4sI7I")


class _Layout(NamedTuple):
    element_bytes: int
    lanes: int
    """Channels that lie side by side; 1 for a plane for each channel."""
    number_2018: int | None
    number_2019: int
    is_float: bool = False


class ImageFormat(Enum):
    """How the elements of an image lie in memory."""

    R8 = _Layout(1, 1, 0, 0)
    A16B16G16R16_F = _Layout(2, 4, 8, 8, is_float=True)
    A8B8G8R8 = _Layout(1, 4, 13, 13)
    F8_CHW_I = _Layout(1, 1, 37, 37)
    F16_CHW_I = _Layout(2, 1, 38, 38)
    F16_CHW_F = _Layout(2, 1, 39, 39, is_float=True)
    F8_CXHWX_X32_I = _Layout(1, 32, 40, 40)
    F8_CXHWX_X8_I = _Layout(1, 8, None, 41)
    F16_CXHWX_X16_I = _Layout(2, 16, 41, 42)
    F16_CXHWX_X16_F = _Layout(2, 16, 42, 43, is_float=True)


@dataclass(frozen=True, slots=True)
class DlaImage:
    """An image: how it lies in memory, and its elements by channel, line and column."""

    format: ImageFormat
    width: int
    height: int
    channel: int
    line_stride: int
    surface_stride: int
    size: int
    """Bytes of the memory that it was taken from."""
    elements: bytes
    is_2018: bool = True
    """Whether the file has the format numbers of 2018."""

    @classmethod
    def from_bytes(cls, data: Buffer, *, is_2018: bool = True) -> DlaImage:
        """Read a file.

        Raises:
            ModelFormatError: It is malformed.
        """
        content = bytes(data)
        if len(content) < _HEAD.size:
            raise ModelFormatError(f"an image of {len(content)} bytes is truncated")
        magic, version, number, *fields = _HEAD.unpack_from(content)
        if magic != _MAGIC or version != 0:
            raise ModelFormatError(
                f"the image header is unknown: it starts with {magic!r}, version {version}"
            )
        kind = _format_of(number, is_2018=is_2018)
        elements = content[_HEAD.size :]
        width, height, channel, line_stride, surface_stride, size = fields
        expected = width * height * channel * kind.value.element_bytes
        if len(elements) != expected:
            raise ModelFormatError(
                f"an image of {channel}x{height}x{width} {kind.name} has {len(elements)} bytes, "
                f"expected {expected}"
            )
        return cls(
            kind, width, height, channel, line_stride, surface_stride, size, elements, is_2018
        )

    def to_bytes(self) -> bytes:
        """Write the file. Raises NvdlaError(NOT_SUPPORTED): the format had no number in 2018."""
        number = self.format.value.number_2018 if self.is_2018 else self.format.value.number_2019
        if number is None:
            raise NvdlaError(
                NvError.NOT_SUPPORTED, f"the 2018 release has no number for {self.format.name}"
            )
        fields = (self.width, self.height, self.channel)
        strides = (self.line_stride, self.surface_stride, self.size)
        return _HEAD.pack(_MAGIC, 0, number, *fields, *strides) + self.elements

    def to_array(self) -> NDArray[np.generic]:
        """The elements, [channel, line, column]."""
        layout = self.format.value
        kind = f"{'f' if layout.is_float else 'i'}{layout.element_bytes}"
        array = np.frombuffer(self.elements, np.dtype(kind))
        return array.reshape(self.channel, self.height, self.width)

    def write_to(self, memory: Bytes) -> None:
        """Put the elements where the format says. Raises NvdlaError: they do not fit."""
        where = _places(self, memory.nbytes)
        memory[where] = np.frombuffer(self.elements, np.uint8).reshape(where.shape)


def image_from_tensor(tensor: NvDlaTensor, memory: Bytes, *, is_stable: bool = True) -> DlaImage:
    """Take a tensor out of memory as the official runtime's server does.

    Every int8 tensor is read with atoms of 32 channels, also where the hardware's are of 8: the
    regression's files are such overlapping reads.

    Args:
        tensor: Its extents and strides.
        memory: The memory that it is bound to.
        is_stable: Replace what the official hash replaces: 32768 by 0, not-a-number by 31744.

    Raises:
        NvdlaError: INVALID_SIZE or INVALID_ADDRESS, the tensor reaches outside its memory;
            NOT_SUPPORTED, images have no such type.
    """
    image = DlaImage(
        _format_of_tensor(tensor),
        tensor.dims.w,
        tensor.dims.h,
        tensor.dims.c,
        tensor.stride[1],
        tensor.stride[2],
        tensor.buffer_size,
        b"",
    )
    data = memory[_places(image, min(memory.nbytes, tensor.buffer_size))]
    if is_stable and image.format.value.is_float:
        halves = data.view(np.float16)
        halves[halves == 32768.0] = 0.0
        halves[np.isnan(halves)] = 31744.0
    return replace(image, elements=data.tobytes())


def _format_of(number: int, *, is_2018: bool) -> ImageFormat:
    for kind in ImageFormat:
        layout = kind.value
        if number == (layout.number_2018 if is_2018 else layout.number_2019):
            return kind
    raise ModelFormatError(f"an image has the unknown format {number}")


def _format_of_tensor(tensor: NvDlaTensor) -> ImageFormat:
    if tensor.data_category == DataCategory.IMAGE and tensor.pixel_format in _PIXEL_FORMATS:
        return _PIXEL_FORMATS[tensor.pixel_format]
    if tensor.data_type in _FEATURE_FORMATS:
        return _FEATURE_FORMATS[tensor.data_type]
    raise NvdlaError(
        NvError.NOT_SUPPORTED,
        f"tensor {tensor.name!r} has data type {tensor.data_type}; images are half, int16 or int8",
    )


_PIXEL_FORMATS: Final = {
    int(PixelFormat.R8): ImageFormat.R8,
    int(PixelFormat.A16B16G16R16_F): ImageFormat.A16B16G16R16_F,
    int(PixelFormat.A8B8G8R8): ImageFormat.A8B8G8R8,
}
_FEATURE_FORMATS: Final = {
    int(DataType.HALF): ImageFormat.F16_CXHWX_X16_F,
    int(DataType.INT16): ImageFormat.F16_CXHWX_X16_I,
    int(DataType.INT8): ImageFormat.F8_CXHWX_X32_I,
}


def _places(image: DlaImage, size_bytes: int) -> NDArray[np.int64]:
    """Give the place of every byte, [channel, line, column, byte]."""
    layout = image.format.value
    atoms = AtomLayout(
        image.channel,
        image.height,
        image.width,
        image.line_stride,
        image.surface_stride,
        layout.lanes,
        layout.element_bytes,
    )
    return atoms.find_bytes(size_bytes, "an image")
