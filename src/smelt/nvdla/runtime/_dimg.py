"""DIMG files: the images that the official runtime reads and writes and its regression compares.

Some format numbers changed in 2019, when atoms of 8 channels were added; the regression's files
use the numbers of 2018.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from smelt.errors import ModelFormatError
from smelt.nvdla._errors import NvError
from smelt.nvdla.loadable import DataCategory, DataType
from smelt.nvdla.runtime._atoms import AtomLayout
from smelt.nvdla.runtime._enums import PixelFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from smelt.nvdla.port import Bytes
    from smelt.nvdla.runtime._tensor import NvDlaTensor

_MAGIC: Final = b"DIMG"
_HEADER: Final = struct.Struct("<4sI7I")
"""Magic, version, format number, width, height, channel, line stride, surface stride, size."""


class _Layout(NamedTuple):
    """Layout of an image format, and its numbers in DIMG files."""

    element_bytes: int
    lanes: int
    """Number of contiguous channels; 1 if each channel is a plane."""
    number_2018: int | None
    """Format number in files of the 2018 release, or None if it lacks the format."""
    number_2019: int
    is_float: bool = False


class ImageFormat(Enum):
    """Layout of an image's elements in memory."""

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
    """An image: its layout in memory, and its elements by channel, line and column."""

    format: ImageFormat
    width: int
    height: int
    channel: int
    line_stride: int
    surface_stride: int
    size: int
    """Size in bytes of the memory that held the image."""
    elements: bytes
    uses_2018_numbers: bool = True
    """Whether the file uses the format numbers of 2018."""

    @classmethod
    def from_bytes(cls, data: Buffer, *, uses_2018_numbers: bool = True) -> DlaImage:
        """Read a DIMG file.

        Args:
            data: Contents of the file.
            uses_2018_numbers: Whether the file uses the format numbers of 2018.

        Raises:
            ModelFormatError: If the file is malformed.
        """
        content = bytes(data)
        if len(content) < _HEADER.size:
            raise ModelFormatError(
                f"the image file is truncated: it has {len(content)} bytes, but the header alone "
                f"has {_HEADER.size}"
            )
        magic, version, number, *fields = _HEADER.unpack_from(content)
        if magic != _MAGIC or version != 0:
            raise ModelFormatError(
                f"the image header starts with {magic!r}, version {version}; expected {_MAGIC!r}, "
                "version 0"
            )
        kind = _format_of(number, uses_2018_numbers=uses_2018_numbers)
        elements = content[_HEADER.size :]
        width, height, channel, line_stride, surface_stride, size = fields
        extents = width, height, channel
        expected = width * height * channel * kind.value.element_bytes
        if len(elements) != expected:
            raise ModelFormatError(
                f"the header declares {channel}x{height}x{width} elements of format {kind.name}, "
                f"which need {expected} bytes, but {len(elements)} bytes follow the header"
            )
        return cls(kind, *extents, line_stride, surface_stride, size, elements, uses_2018_numbers)

    def to_bytes(self) -> bytes:
        """Return the DIMG file.

        Raises:
            NvdlaError: NOT_SUPPORTED if the format had no number in 2018 but the file uses these.
        """
        layout = self.format.value
        number = layout.number_2018 if self.uses_2018_numbers else layout.number_2019
        if number is None:
            raise NvError.NOT_SUPPORTED.error(
                f"the format {self.format.name} has no number in DIMG files of 2018; set "
                "uses_2018_numbers=False"
            )
        fields = (self.width, self.height, self.channel)
        strides = (self.line_stride, self.surface_stride, self.size)
        return _HEADER.pack(_MAGIC, 0, number, *fields, *strides) + self.elements

    def to_array(self) -> NDArray[np.generic]:
        """Return the elements, [channel, line, column]."""
        layout = self.format.value
        kind = f"{'f' if layout.is_float else 'i'}{layout.element_bytes}"
        array = np.frombuffer(self.elements, np.dtype(kind))
        return array.reshape(self.channel, self.height, self.width)

    def write_to(self, memory: Bytes) -> None:
        """Write the elements to memory in the image's layout.

        Raises:
            NvdlaError: INVALID_SIZE or INVALID_ADDRESS if the image does not fit.
        """
        offsets = _byte_offsets(self, memory.nbytes)
        memory[offsets] = np.frombuffer(self.elements, np.uint8).reshape(offsets.shape)


def image_from_tensor(tensor: NvDlaTensor, memory: Bytes, *, stable_hash: bool = True) -> DlaImage:
    """Return a tensor's contents as an image, as the official runtime's server does.

    Every int8 tensor is read with atoms of 32 channels, even if the hardware's atoms have 8: the
    regression's files contain such overlapping reads.

    Args:
        tensor: Extents, type and strides of the tensor.
        memory: The memory that the tensor is bound to.
        stable_hash: Whether to replace the values that the official hash replaces: 32768 by 0 and
            NaN by 31744, in float images.

    Raises:
        NvdlaError: INVALID_SIZE or INVALID_ADDRESS if the tensor lies partly outside the memory;
            NOT_SUPPORTED if no image format has the tensor's type.
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
    data = memory[_byte_offsets(image, min(memory.nbytes, tensor.buffer_size))]
    if stable_hash and image.format.value.is_float:
        halves = data.view(np.float16)
        halves[halves == 32768.0] = 0.0
        halves[np.isnan(halves)] = 31744.0
    return replace(image, elements=data.tobytes())


def _format_of(number: int, *, uses_2018_numbers: bool) -> ImageFormat:
    for kind in ImageFormat:
        layout = kind.value
        if number == (layout.number_2018 if uses_2018_numbers else layout.number_2019):
            return kind
    raise ModelFormatError(f"the image has the unknown format number {number}")


def _format_of_tensor(tensor: NvDlaTensor) -> ImageFormat:
    """Return the image format for a tensor; raise NvdlaError(NOT_SUPPORTED) if there is none."""
    if tensor.data_category == DataCategory.IMAGE and tensor.pixel_format in _PIXEL_FORMATS:
        return _PIXEL_FORMATS[tensor.pixel_format]
    if tensor.data_type in _FEATURE_FORMATS:
        return _FEATURE_FORMATS[tensor.data_type]
    raise NvError.NOT_SUPPORTED.error(
        f"tensor {tensor.name!r} has data type {tensor.data_type}; images support half, int16 and "
        "int8"
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


def _byte_offsets(image: DlaImage, size_bytes: int) -> NDArray[np.int64]:
    """Return the offset of every byte of an image, [channel, line, column, byte]."""
    layout = image.format.value
    extents = (image.channel, image.height, image.width)
    strides = (image.line_stride, image.surface_stride)
    atoms = AtomLayout(extents, strides, layout.lanes, layout.element_bytes)
    return atoms.byte_offsets(size_bytes, "an image")
