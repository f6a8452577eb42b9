"""CDMA: what convolutions read of feature cubes, images of 36 pixel formats, and weights.

In image mode, a line of pixels, all channels of one pixel after those of the previous one, is one
vector; a window of the convolution is a contiguous part of it. A kernel of W x H pixels with C
channels is therefore equivalent to a kernel of 1 x H pixels with W * C channels and a stride that
is C times as long.

CDMA pads the left and right sides, CSC the top and bottom; both use their register's value
unconverted. According to the programming guide CDMA's padding passes through the converter, but in
the published hardware source it is inserted after the converter, and the machine model follows the
hardware. Likewise fp16 pixels pass the converter unchanged, although one line of the documentation
subtracts their mean. Feature cubes pass the same converter; weights are brought from their stored
order to [height, width, channels, kernels].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import Precision
from smelt.nvdla.hardware._arithmetic import (
    round_to_fp16,
    saturate,
    shift_right_saturated,
    sign_extend,
)
from smelt.nvdla.hardware._group_registers import flush_nans
from smelt.nvdla.hardware._memory import DTYPES, Surface
from smelt.nvdla.hardware._running_operation import ceil_div
from smelt.nvdla.hardware._winograd import unpack_winograd
from smelt.types import Limit

if TYPE_CHECKING:
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._group_registers import GroupRegisters
    from smelt.nvdla.hardware._running_operation import Operation


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
    operation: Operation, shape: ConvolutionShape
) -> tuple[np.ndarray, ConvolutionShape]:
    """Return the windows [height, output width, kernel width * channels] and the remaining shape.

    The remaining convolution over the windows is one column wide and has a horizontal stride of 1.

    Raises:
        NvdlaError: NOT_SUPPORTED if the pixel format does not exist; BAD_VALUE if registers
            contradict each other; INVALID_ADDRESS or INVALID_SIZE if the image is not in memory.
    """
    cdma, csc = operation.registers["CDMA"], operation.registers["CSC"]
    raw = _read_pixels(operation)
    _check_precisions(operation, raw, shape.precision)
    pixels = _convert_pixels(operation, raw, shape.precision)
    channels = csc.get("DATAIN_CHANNEL_EXT") + 1
    if pixels.shape[2] != channels:
        raise NvError.BAD_VALUE.error(
            f"the pixel format has {pixels.shape[2]} channels, but CSC expects {channels}"
        )
    left = cdma.get("PAD_LEFT")
    right = cdma.get("PAD_RIGHT")
    sides = pad_value(operation, shape.precision, "CDMA")
    padded = np.pad(pixels, ((0, 0), (left, right), (0, 0)), constant_values=sides)
    lines = padded.reshape(padded.shape[0], -1)
    step = shape.stride_x * channels
    reach = (shape.output_width - 1) * step + shape.channels
    if shape.kernel_width != 1 or reach > lines.shape[1]:
        raise NvError.BAD_VALUE.error(
            f"CSC's kernel width is {shape.kernel_width}, and its windows span {reach} elements; "
            "for pixels the width must be 1, and the windows must fit into a padded line of "
            f"{lines.shape[1]} elements"
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
    stored = cdma.precision("IN_PRECISION")
    if (raw.dtype == np.float16) != (stored is Precision.FP16):
        raise NvError.BAD_VALUE.error(
            f"pixel format {cdma.get('PIXEL_FORMAT')} holds"
            f" {'fp16' if raw.dtype == np.float16 else 'integers'}, but CDMA's IN_PRECISION is"
            f" {stored.name.lower()}"
        )
    if raw.dtype == np.float16 and precision is not Precision.FP16:
        raise NvError.BAD_VALUE.error("CDMA does not convert fp16 pixels to integers")


def _surface(cdma: GroupRegisters, plane: int, count: int, atom_bytes: int) -> Surface:
    """Return the input, or a plane of it, as ``count`` surfaces."""
    width, height, _ = cdma.extents("DATAIN_")
    return Surface(
        cdma.space("DATAIN_RAM_TYPE"),
        cdma.address(f"D_DAIN_ADDR_LOW_{plane}", f"D_DAIN_ADDR_HIGH_{plane}"),
        cdma.word("D_LINE_UV_STRIDE" if plane else "D_LINE_STRIDE"),
        cdma.word("D_SURF_STRIDE"),
        width,
        height,
        count,
        atom_bytes,
        f"CDMA.D_DAIN_ADDR_{plane}",
    )


def _read_plane(operation: Operation, plane: int, pixel_bytes: int) -> np.ndarray:
    """Return the bytes [height, width, pixel bytes] of one plane."""
    cdma = operation.registers["CDMA"]
    offset = cdma.get("PIXEL_X_OFFSET") * pixel_bytes
    if plane:  # the second plane's address is that of the atom that contains the first pixel
        offset %= operation.configuration.atom_bytes
    surface = _surface(cdma, plane, 1, pixel_bytes)
    surface = replace(surface, address=surface.address + offset)
    return np.asarray(operation.dma.read_atoms(surface)[0])


def _read_pixels(operation: Operation) -> np.ndarray:
    """Return the unconverted channels [height, width, channels], int64 or fp16."""
    cdma = operation.registers["CDMA"]
    number = cdma.get("PIXEL_FORMAT")
    mapping = cdma.get("PIXEL_MAPPING")
    if number >= len(PIXEL_FORMATS) or mapping:
        raise NvError.NOT_SUPPORTED.error(
            f"CDMA.D_DATAIN_FORMAT has the pixel format {number} and the pixel mapping {mapping}; "
            f"the format must be 0 to {len(PIXEL_FORMATS) - 1} and the mapping 0"
        )
    pixel = PIXEL_FORMATS[number]
    planes = [_read_plane(operation, *plane) for plane in enumerate(pixel.plane_bytes)]
    content = np.concatenate(planes, axis=2)
    if pixel.kind == "packed":
        words = content.view(np.uint32).astype(np.int64)
        widths = (10, 10, 10, 2)  # the last channel is alpha
        channels = [_unpack(words, *item) for item in zip(pixel.order, widths, strict=True)]
        return np.concatenate(channels, axis=2)
    if pixel.kind == "fp16":
        return content.view(np.float16)[..., list(pixel.order)]
    sign = "i" if cdma.get("PIXEL_SIGN_OVERRIDE") else "u"
    elements = content.view(f"{sign}{pixel.element_bytes}")[..., list(pixel.order)]
    return elements.astype(np.int64)


def _unpack(words: np.ndarray, shift: int, bits: int) -> np.ndarray:
    """Return one channel of packed pixels in the upper bits of 16 bits."""
    return ((words >> shift) & ((1 << bits) - 1)) << (16 - bits)


def _convert_pixels(operation: Operation, pixels: np.ndarray, precision: Precision) -> np.ndarray:
    """Subtract the mean and scale; fp16 pixels, and all if the converter is off, stay unchanged."""
    cdma = operation.registers["CDMA"]
    if pixels.dtype == np.float16:
        return flush_nans(cdma, pixels)
    if not cdma.get("CVT_EN"):
        return pixels.astype(DTYPES[precision])  # keeps the low bits
    offsets = np.full(pixels.shape[2], cdma.signed("CVT_OFFSET"), np.int64)
    if cdma.get("MEAN_FORMAT"):
        words = (cdma.word("D_MEAN_GLOBAL_0"), cdma.word("D_MEAN_GLOBAL_1"))
        means = [sign_extend(word >> shift, 16) for word in words for shift in (0, 16)]
        offsets = np.array(means[: pixels.shape[2]], np.int64)
    return _convert(cdma, pixels - offsets, precision)


def _convert(cdma: GroupRegisters, differences: np.ndarray, precision: Precision) -> np.ndarray:
    """Run CDMA's converter on integers from which its offset was subtracted."""
    scaled = differences * cdma.signed("CVT_SCALE")
    wide = shift_right_saturated(scaled, cdma.get("CVT_TRUNCATE"), 17)
    if precision is Precision.FP16:
        return round_to_fp16(wide.astype(np.float64))
    return saturate(wide, 8 * precision.size_bytes)


def pad_value(operation: Operation, precision: Precision, unit: Literal["CDMA", "CSC"]) -> float:
    """Return the value of a unit's padding; int8 uses only the low byte of the register."""
    word = operation.registers[unit].word("D_ZERO_PADDING_VALUE")
    if precision is Precision.FP16:
        return float(np.array(word & 0xFFFF, np.uint16).view(np.float16))
    return sign_extend(word, 8 if precision is Precision.INT8 else 16)


def read_features(operation: Operation, precision: Precision) -> list[np.ndarray]:
    """Return the converted input [height, width, channels] of each batch element.

    In Winograd mode the channels are rounded up to whole atoms.

    Raises:
        NvdlaError: NOT_SUPPORTED if the configuration lacks a mode or precision; BAD_VALUE if the
            conversion does not exist; INVALID_ADDRESS or INVALID_SIZE if the cube is not in memory.
    """
    cdma = operation.registers["CDMA"]
    batches = cdma.get("BATCHES") + 1
    if batches > 1:
        operation.require_support(operation.configuration.has_batch, "multi-batch mode")
    stored = operation.precision("CDMA", "IN_PRECISION", "CDMA's input")
    if stored is Precision.FP16 and precision is not Precision.FP16:
        raise NvError.BAD_VALUE.error("CDMA does not convert fp16 to integers")
    channels = cdma.get("DATAIN_CHANNEL") + 1
    if cdma.get("CONV_MODE"):
        elements = operation.configuration.atom_elements(stored)
        channels = ceil_div(channels, elements) * elements
    count = ceil_div(channels, operation.configuration.atom_elements(stored))
    first = _surface(cdma, 0, count, operation.configuration.atom_bytes)
    cubes: list[np.ndarray] = []
    for surface in first.batches(batches, cdma.word("D_BATCH_STRIDE")):
        cube = operation.dma.read_cube(surface, DTYPES[stored])[..., :channels]
        cubes.append(_convert_cube(operation, cube, precision))
    return cubes


def _convert_cube(operation: Operation, cube: np.ndarray, precision: Precision) -> np.ndarray:
    """Run CDMA's converter on a feature cube."""
    cdma = operation.registers["CDMA"]
    if cube.dtype == np.float16:
        return flush_nans(cdma, cube)
    if not cdma.get("CVT_EN"):
        if precision is Precision.FP16:
            raise NvError.BAD_VALUE.error(
                "CDMA converts integers to fp16 only if its converter is enabled"
            )
        if cube.dtype == DTYPES[precision]:
            return cube
        return saturate(cube.astype(np.int64), 8 * precision.size_bytes)
    offset = cdma.signed("CVT_OFFSET")
    return _convert(cdma, cube.astype(np.int64) - offset, precision)


def read_weights(operation: Operation, shape: ConvolutionShape) -> np.ndarray:
    """Return the kernels of a convolution in the order that its mode needs.

    Raises:
        NvdlaError: INVALID_SIZE if the kernels are too large; NOT_SUPPORTED if they are compressed
            and the configuration lacks compression; INVALID_ADDRESS if they lie outside memory.
    """
    elements = shape.kernel_height * shape.kernel_width * shape.channels * shape.kernels
    if (size := elements * shape.precision.size_bytes) > Limit.MAX_KERNEL_BYTES.most:
        raise NvError.INVALID_SIZE.error(
            f"the kernels have {Limit.MAX_KERNEL_BYTES.excess(size)}; check their size"
        )
    kept = operation.buffer.weights
    is_reused = operation.registers["CDMA"].get("WEIGHT_REUSE")
    if kept is not None and is_reused and kept.size == elements:
        flat = kept
    else:
        flat = read_weight_elements(operation, shape.precision, elements)
    operation.buffer.weights = flat
    group = operation.configuration.kernel_group(shape.precision)
    if operation.registers["CDMA"].get("CONV_MODE"):
        return unpack_winograd(flat, shape, group)
    csc = operation.registers["CSC"]
    lines = 1 << csc.get("Y_EXTENSION")
    if lines > 1 and csc.get("DATAIN_FORMAT"):
        return unpack_extended(flat, shape, group, lines)
    return unpack_direct(flat, shape, group, operation.configuration.atomic_c)


def read_weight_elements(operation: Operation, precision: Precision, count: int) -> np.ndarray:
    """Return the stored elements in order; compressed elements are expanded."""
    cdma = operation.registers["CDMA"]
    space = cdma.space("WEIGHT_RAM_TYPE")
    address = cdma.address("D_WEIGHT_ADDR_LOW", "D_WEIGHT_ADDR_HIGH")
    is_compressed = bool(cdma.get("WEIGHT_FORMAT"))
    dtype, element_bytes = DTYPES[precision], precision.size_bytes
    if not is_compressed:
        size_bytes = count * element_bytes
        data = operation.dma.read_bytes(space, address, size_bytes, "CDMA.D_WEIGHT_ADDR")
        return _flush(operation, data.view(dtype))
    if not operation.configuration.has_compression:
        raise NvError.NOT_SUPPORTED.error(
            f"{operation.configuration.name} does not support compressed weights"
        )
    mask_bytes = operation.dma.read_bytes(
        space,
        cdma.address("D_WMB_ADDR_LOW", "D_WMB_ADDR_HIGH"),
        ceil_div(count, 8),
        "CDMA.D_WMB_ADDR",
    )
    mask = np.unpackbits(mask_bytes, count=count, bitorder="little").astype(bool)
    size_bytes = int(mask.sum()) * element_bytes
    data = operation.dma.read_bytes(space, address, size_bytes, "CDMA.D_WEIGHT_ADDR")
    elements = np.zeros(count, dtype)
    elements[mask] = data.view(dtype)
    return _flush(operation, elements)


def _flush(operation: Operation, elements: np.ndarray) -> np.ndarray:
    """Count NaNs, and replace them by 0 if that is programmed."""
    if elements.dtype != np.float16:
        return elements
    is_nan = (elements.view(np.uint16) & 0x7FFF) > 0x7C00  # numpy's isnan is slow for fp16
    count = int(is_nan.sum())
    operation.counters.nan_inputs += count
    if count and operation.registers["CDMA"].get("NAN_TO_ZERO"):
        return np.where(is_nan, np.float16(0), elements)
    return elements


def unpack_extended(
    flat: np.ndarray, shape: ConvolutionShape, group: int, lines: int
) -> np.ndarray:
    """Reorder image kernels whose lines are stored in groups of two or four.

    The stored order is group of lines, kernel, line, channel.
    """
    rows, channels = shape.kernel_height, shape.channels
    weights = np.empty((rows, 1, channels, shape.kernels), flat.dtype)
    at = 0
    for first in range(0, shape.kernels, group):
        count = min(group, shape.kernels - first)
        for top in range(0, rows, lines):
            height = min(lines, rows - top)
            part = flat[at : at + height * channels * count].reshape(count, height, channels)
            weights[top : top + height, 0, :, first : first + count] = part.transpose(1, 2, 0)
            at += part.size
    return weights


def unpack_direct(flat: np.ndarray, shape: ConvolutionShape, group: int, block: int) -> np.ndarray:
    """Reorder groups of kernels that are stored in blocks of channels.

    The stored order within a block is row, column, kernel, channel.
    """
    rows, columns, channels = shape.kernel_height, shape.kernel_width, shape.channels
    weights = np.empty((rows, columns, channels, shape.kernels), flat.dtype)
    per_kernel = rows * columns * channels
    whole = shape.kernels // group * group
    if whole:
        _unpack_groups(flat[: whole * per_kernel], weights[..., :whole], group, block)
    if whole < shape.kernels:
        rest = shape.kernels - whole
        _unpack_groups(flat[whole * per_kernel :], weights[..., whole:], rest, block)
    return weights


def _unpack_groups(flat: np.ndarray, weights: np.ndarray, group: int, block: int) -> None:
    """Reorder kernels whose number is a multiple of the group."""
    rows, columns, channels, kernels = weights.shape
    groups = kernels // group
    stored = flat.reshape(groups, -1)
    target = weights.reshape(rows, columns, channels, groups, group)
    full = channels // block * block
    for first, count, size in ((0, full // block, block), (full, 1, channels - full)):
        if not count * size:
            continue
        begin = first * rows * columns * group
        part = stored[:, begin : begin + count * size * rows * columns * group]
        ordered = part.reshape(groups, count, rows, columns, group, size)
        target[:, :, first : first + count * size] = ordered.transpose(2, 3, 1, 5, 0, 4).reshape(
            rows, columns, count * size, groups, group
        )
