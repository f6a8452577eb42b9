"""CDMA's image mode: reading pixels of 36 formats, mean and converter, and windows over lines.

A line of pixels, all channels of one pixel after those of the previous one, is one vector; a window
of the convolution is a contiguous part of it. A kernel of W x H pixels with C channels is therefore
equivalent to a kernel of 1 x H pixels with W * C channels and a stride that is C times as long.

CDMA pads the left and right sides, CSC the top and bottom; both use their register's value
unconverted. According to the programming guide CDMA's padding passes through the converter, but in
the published hardware source it is inserted after the converter, and the machine model follows the
hardware. Likewise fp16 pixels pass the converter unchanged, although one line of the documentation
subtracts their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import saturate, shift_right_saturated, sign_extend
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._features import pad_value
from smelt.nvdla.hardware._float import round_to_fp16
from smelt.nvdla.hardware._memory import DTYPES, Surface

if TYPE_CHECKING:
    from smelt.nvdla._protocols import MemorySpace
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._operation import Operation

Kind = Literal["int8", "int16", "fp16", "packed"]


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """Conversion of a pixel to channels."""

    kind: Kind
    order: tuple[int, ...]
    """Element of the pixel for each channel; for packed pixels, the channel's lowest bit."""
    is_semi_planar: bool = False
    """Whether the first element is in one plane and the other two are in a second plane."""

    @property
    def element_bytes(self) -> int:
        """Size of an element in memory; a packed pixel is one element of 4 bytes."""
        return {"int8": 1, "int16": 2, "fp16": 2, "packed": 4}[self.kind]

    @property
    def plane_bytes(self) -> tuple[int, ...]:
        """Bytes of a pixel in each plane."""
        if self.is_semi_planar:
            return self.element_bytes, 2 * self.element_bytes
        return (4 if self.kind == "packed" else self.element_bytes * len(self.order),)


_STRAIGHT, _SWAPPED, _ROTATED, _REVERSED = (0, 1, 2, 3), (2, 1, 0, 3), (1, 2, 3, 0), (3, 2, 1, 0)


def _yuv(kind: Kind) -> tuple[PixelFormat, PixelFormat]:
    return PixelFormat(kind, (0, 2, 1), is_semi_planar=True), PixelFormat(
        kind, (0, 1, 2), is_semi_planar=True
    )


PIXEL_FORMATS: tuple[PixelFormat, ...] = (
    PixelFormat("int8", (0,)),  # R8
    *(PixelFormat("int16", (0,)),) * 4,  # R10, R12, R16, R16_I
    PixelFormat("fp16", (0,)),  # R16_F
    *(PixelFormat("int16", _STRAIGHT),) * 2,  # A16B16G16R16, X16B16G16R16
    PixelFormat("fp16", _STRAIGHT),  # A16B16G16R16_F
    PixelFormat("int16", _SWAPPED),  # A16Y16U16V16
    PixelFormat("int16", _ROTATED),  # V16U16Y16A16
    PixelFormat("fp16", _SWAPPED),  # A16Y16U16V16_F
    PixelFormat("int8", _STRAIGHT),  # A8B8G8R8
    PixelFormat("int8", _SWAPPED),  # A8R8G8B8
    PixelFormat("int8", _ROTATED),  # B8G8R8A8
    PixelFormat("int8", _REVERSED),  # R8G8B8A8
    PixelFormat("int8", _STRAIGHT),  # X8B8G8R8
    PixelFormat("int8", _SWAPPED),  # X8R8G8B8
    PixelFormat("int8", _ROTATED),  # B8G8R8X8
    PixelFormat("int8", _REVERSED),  # R8G8B8X8
    PixelFormat("packed", (0, 10, 20, 30)),  # A2B10G10R10
    PixelFormat("packed", (20, 10, 0, 30)),  # A2R10G10B10
    PixelFormat("packed", (2, 12, 22, 0)),  # B10G10R10A2
    PixelFormat("packed", (22, 12, 2, 0)),  # R10G10B10A2
    PixelFormat("packed", (20, 10, 0, 30)),  # A2Y10U10V10
    PixelFormat("packed", (2, 12, 22, 0)),  # V10U10Y10A2
    PixelFormat("int8", _SWAPPED),  # A8Y8U8V8
    PixelFormat("int8", _ROTATED),  # V8U8Y8A8
    *_yuv("int8"),  # Y8 with U8V8, V8U8
    *_yuv("int16"),  # Y10
    *_yuv("int16"),  # Y12
    *_yuv("int16"),  # Y16
)
"""Pixel formats, indexed by the PIXEL_FORMAT field."""


def read_image(
    operation: Operation, precision: Precision, shape: ConvolutionShape
) -> tuple[np.ndarray, ConvolutionShape]:
    """Return the windows [height, output width, kernel width * channels] and the remaining shape.

    The remaining convolution over the windows is one column wide and has a horizontal stride of 1.

    Raises:
        NvdlaError: NOT_SUPPORTED if the pixel format does not exist; BAD_VALUE if registers
            contradict each other; INVALID_ADDRESS or INVALID_SIZE if the image is not in memory.
    """
    cdma, csc = operation.registers["CDMA"], operation.registers["CSC"]
    raw = _read_pixels(operation)
    _check_precisions(operation, raw, precision)
    pixels = _convert(operation, raw, precision)
    channels = csc.get("D_DATAIN_SIZE_EXT_1", "DATAIN_CHANNEL_EXT") + 1
    if pixels.shape[2] != channels:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"the pixel format has {pixels.shape[2]} channels, but CSC expects {channels}",
        )
    left = cdma.get("D_ZERO_PADDING", "PAD_LEFT")
    right = cdma.get("D_ZERO_PADDING", "PAD_RIGHT")
    sides = pad_value(operation, precision, "CDMA")
    padded = np.pad(pixels, ((0, 0), (left, right), (0, 0)), constant_values=sides)
    lines = padded.reshape(padded.shape[0], -1)
    step = shape.stride_x * channels
    reach = (shape.output_width - 1) * step + shape.channels
    if shape.kernel_width != 1 or reach > lines.shape[1]:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"image windows need {reach} elements of each line, which has {lines.shape[1]}; "
            f"the kernel is {shape.kernel_width} columns wide and must be one column wide",
        )
    windows = np.lib.stride_tricks.as_strided(
        lines,
        (lines.shape[0], shape.output_width, shape.channels),
        (lines.strides[0], step * lines.strides[1], lines.strides[1]),
    )
    return windows, replace(shape, stride_x=1, dilation_x=1, pad_left=0)


def _check_precisions(operation: Operation, raw: np.ndarray, precision: Precision) -> None:
    """Check that the pixels have CDMA's input precision and that CDMA can convert them."""
    cdma = operation.registers["CDMA"]
    stored = cdma.precision("D_MISC_CFG", "IN_PRECISION")
    if (raw.dtype == np.float16) != (stored is Precision.FP16):
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"pixel format {cdma.get('D_DATAIN_FORMAT', 'PIXEL_FORMAT')} holds"
            f" {'fp16' if raw.dtype == np.float16 else 'integers'}, but CDMA's IN_PRECISION is"
            f" {stored.name.lower()}",
        )
    if raw.dtype == np.float16 and precision is not Precision.FP16:
        raise NvdlaError(NvError.BAD_VALUE, "CDMA does not convert fp16 pixels to integers")


def _read_plane(
    operation: Operation, plane: int, space: MemorySpace, pixel_bytes: int, size: tuple[int, int]
) -> np.ndarray:
    """Return the bytes [height, width, pixel bytes] of one plane."""
    cdma = operation.registers["CDMA"]
    height, width = size
    offset = cdma.get("D_PIXEL_OFFSET", "PIXEL_X_OFFSET") * pixel_bytes
    if plane:  # the second plane's address is that of the atom that contains the first pixel
        offset %= operation.configuration.atom_bytes
    surface = Surface(
        space,
        cdma.address(f"D_DAIN_ADDR_LOW_{plane}", f"D_DAIN_ADDR_HIGH_{plane}") + offset,
        cdma.word("D_LINE_UV_STRIDE" if plane else "D_LINE_STRIDE"),
        0,
        width,
        height,
        1,
        pixel_bytes,
        f"CDMA.D_DAIN_ADDR_{plane}",
    )
    plane_bytes: np.ndarray = operation.dma.read_atoms(surface)[0]
    return plane_bytes


def _read_pixels(operation: Operation) -> np.ndarray:
    """Return the unconverted channels [height, width, channels], int64 or fp16."""
    cdma = operation.registers["CDMA"]
    number = cdma.get("D_DATAIN_FORMAT", "PIXEL_FORMAT")
    if number >= len(PIXEL_FORMATS) or cdma.get("D_DATAIN_FORMAT", "PIXEL_MAPPING"):
        raise NvdlaError(
            NvError.NOT_SUPPORTED,
            f"CDMA does not support pixel format {number} or the pixel mapping",
        )
    pixel = PIXEL_FORMATS[number]
    size = (
        cdma.get("D_DATAIN_SIZE_0", "DATAIN_HEIGHT") + 1,
        cdma.get("D_DATAIN_SIZE_0", "DATAIN_WIDTH") + 1,
    )
    space = cdma.space("D_DAIN_RAM_TYPE", "DATAIN_RAM_TYPE")
    planes = [
        _read_plane(operation, index, space, pixel_bytes, size)
        for index, pixel_bytes in enumerate(pixel.plane_bytes)
    ]
    content = np.concatenate(planes, axis=2)
    if pixel.kind == "packed":
        words = content.view(np.uint32).astype(np.int64)
        widths = (10, 10, 10, 2)  # the last channel is alpha
        channels = [_unpack(words, *item) for item in zip(pixel.order, widths, strict=True)]
        return np.concatenate(channels, axis=2)
    signed = bool(cdma.get("D_DATAIN_FORMAT", "PIXEL_SIGN_OVERRIDE"))
    elements = content.view(_dtype(pixel.kind, signed=signed))[..., list(pixel.order)]
    return elements if pixel.kind == "fp16" else elements.astype(np.int64)


def _dtype(kind: Kind, *, signed: bool) -> type[np.generic]:
    if kind == "fp16":
        return np.float16
    if kind == "int8":
        return np.int8 if signed else np.uint8
    return np.int16 if signed else np.uint16


def _unpack(words: np.ndarray, shift: int, bits: int) -> np.ndarray:
    """Return one channel of packed pixels in the upper bits of 16 bits."""
    return ((words >> shift) & ((1 << bits) - 1)) << (16 - bits)


def _convert(operation: Operation, pixels: np.ndarray, precision: Precision) -> np.ndarray:
    """Subtract the mean and scale; fp16 pixels, and all if the converter is off, stay unchanged."""
    cdma = operation.registers["CDMA"]
    if pixels.dtype == np.float16:
        if cdma.get("D_NAN_FLUSH_TO_ZERO", "NAN_TO_ZERO"):
            pixels = np.where(np.isnan(pixels), np.float16(0), pixels)
        return pixels
    if not cdma.get("D_CVT_CFG", "CVT_EN"):
        return pixels.astype(DTYPES[precision])  # keeps the low bits
    offsets = np.full(pixels.shape[2], cdma.signed("D_CVT_OFFSET", "CVT_OFFSET"), np.int64)
    if cdma.get("D_MEAN_FORMAT", "MEAN_FORMAT"):
        words = (cdma.word("D_MEAN_GLOBAL_0"), cdma.word("D_MEAN_GLOBAL_1"))
        means = [sign_extend(word >> shift, 16) for word in words for shift in (0, 16)]
        offsets = np.array(means[: pixels.shape[2]], np.int64)
    scale = cdma.signed("D_CVT_SCALE", "CVT_SCALE")
    shift = cdma.get("D_CVT_CFG", "CVT_TRUNCATE")
    wide = shift_right_saturated((pixels - offsets) * scale, shift, 17)
    if precision is Precision.FP16:
        return round_to_fp16(wide.astype(np.float64))
    return saturate(wide, 8 * precision.size_bytes)
