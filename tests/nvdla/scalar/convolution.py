"""Direct, image and Winograd convolution, and the accumulator after them.

Source: NVDLA documentation, Unit Description, "Direct Convolution", "Winograd Convolution",
"Multi-Batch Mode", "Dilation", "Convolution Accumulator"; Programming Guide, WEIGHT/DATAIN_SIZE_EXT
and DATAOUT_SIZE; Precision Preservation, pra_trunc and cc_out_trunc. Data stand as channel, line,
column, weights as kernel, channel, line, column, results as kernel, line, column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.nvdla.scalar.arithmetic import (
    Cube,
    HalfCube,
    Precision,
    saturate,
    shift_right,
    sign_extend,
)
from tests.nvdla.scalar.floats import HALF, SINGLE, Number, floor_log2, read_half
from tests.nvdla.scalar.image import CONVOLUTION_INFINITY

HalfWeights: TypeAlias = npt.NDArray[np.float16]

_CT: Final = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_AT: Final = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


@dataclass(frozen=True, slots=True)
class Padding:
    """Columns and lines around the input, and what they hold (the register's bits)."""

    left: int = 0
    right: int = 0
    top: int = 0
    bottom: int = 0
    value: int = 0


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution's parameters as an algorithm has them (a dilation of 1 is none).

    ``accumulator_bits`` is 34 for int8 and 48 for int16 in the documentation's table of the
    accumulator's precision.
    """

    precision: Precision = Precision.INT8
    stride_x: int = 1
    stride_y: int = 1
    dilation_x: int = 1
    dilation_y: int = 1
    padding: Padding = Padding()
    channels_per_block: int = 64
    accumulator_bits: int = 48
    clip_truncate: int = 0
    pra_truncate: int = 0

    def output_shape(self, data_shape: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, int]:
        """Return the lines and columns of the result (Unit Description, "Direct Convolution")."""
        _, height, width = data_shape
        lines = (kernel[-2] - 1) * self.dilation_y + 1
        columns = (kernel[-1] - 1) * self.dilation_x + 1
        pad = self.padding
        return (
            (pad.top + height + pad.bottom - lines) // self.stride_y + 1,
            (pad.left + width + pad.right - columns) // self.stride_x + 1,
        )


@dataclass(frozen=True, slots=True)
class Accumulated:
    """What the accumulator hands on: 32-bit sums and how many of them saturated."""

    sums: Cube
    saturation_count: int


@dataclass(frozen=True, slots=True)
class FloatSum:
    """An exact sum of products, and the documentation's bound for what hardware gives."""

    value: Number
    tolerance: Fraction


def convolve_direct(settings: Convolution, data: Cube, weights: Cube) -> Accumulated:
    """Convolve int8 or int16: blocks of channels outside, kernel positions inside.

    Source: Unit Description, "Direct Convolution" (block and channel operation), "Dilation";
    Precision Preservation for the padding value (its low byte in int8).
    """
    kernels = weights.shape[0]
    lines, columns = settings.output_shape(data.shape, weights.shape)
    pad = sign_extend(settings.padding.value, settings.precision.width_bits)
    accumulators = np.zeros((kernels, lines, columns), np.int64)
    for index in np.ndindex(accumulators.shape):
        kernel, line, column = index
        total = 0
        for start in range(0, data.shape[0], settings.channels_per_block):
            stop = min(start + settings.channels_per_block, data.shape[0])
            for r, s in np.ndindex(weights.shape[2:]):
                place = _input_place(settings, line, column, r, s)
                partial = 0
                for channel in range(start, stop):
                    element = _element(data, channel, place, pad)
                    partial += element * int(weights[kernel, channel, r, s])
                total = saturate(total + partial, settings.accumulator_bits)
        accumulators[index] = total
    return round_accumulators(accumulators, settings.clip_truncate)


def convolve_batches(
    settings: Convolution, batches: list[Cube], weights: Cube
) -> list[Accumulated]:
    """Convolve several cubes with the same kernels (Unit Description, "Multi-Batch Mode")."""
    return [convolve_direct(settings, data, weights) for data in batches]


def convolve_image(settings: Convolution, padded: Cube, weights: Cube) -> Accumulated:
    """Convolve a converted image whose padding is already around it.

    Source: Unit Description, "Convolution with Image Input": a direct convolution in other
    clothes; pre- and post-extension only reorder the sum.
    """
    return convolve_direct(replace(settings, padding=Padding()), padded, weights)


def round_accumulators(accumulators: Cube, clip_truncate: int) -> Accumulated:
    """Round and saturate sums to 32 bits (Unit Description, "Convolution Accumulator")."""
    sums = np.zeros_like(accumulators)
    count = 0
    for index in np.ndindex(accumulators.shape):
        rounded = shift_right(int(accumulators[index]), clip_truncate)
        sums[index] = saturate(rounded, 32)
        count += int(sums[index] != rounded)
    return Accumulated(sums, count)


def extend_winograd_data(settings: Convolution, data: Cube) -> Cube:
    """Pad the input and fold a stride into its channels, so that the stride becomes 1.

    Source: Programming Guide, DATAIN_SIZE_EXT for Winograd; the channel order is that of the
    weights' figure: block ``dy * stride_x + dx`` holds every stride's (dy, dx) position.
    ``data`` has all channels of its last atom.
    """
    pad = settings.padding
    value = sign_extend(pad.value, settings.precision.width_bits)
    channels, height, width = data.shape
    lines = -(-(pad.top + height + pad.bottom) // settings.stride_y)
    columns = -(-(pad.left + width + pad.right) // settings.stride_x)
    extended = np.zeros(
        (channels * settings.stride_x * settings.stride_y, lines, columns), np.int64
    )
    for dy, dx in np.ndindex(settings.stride_y, settings.stride_x):
        block = dy * settings.stride_x + dx
        for channel, line, column in np.ndindex(channels, lines, columns):
            place = (
                line * settings.stride_y + dy - pad.top,
                column * settings.stride_x + dx - pad.left,
            )
            element = _element(data, channel, place, value)
            extended[block * channels + channel, line, column] = element
    return extended


def convolve_winograd(settings: Convolution, data: Cube, weights: Cube) -> Accumulated:
    """Convolve with 4 by 4 kernels that software transformed (G g G^T, scaled and rounded).

    Source: Unit Description, "Winograd Convolution": A^T [U . (C^T d C)] A in blocks of four
    channels; Precision Preservation, pra_trunc: the transformed data round and saturate to the
    processing precision.
    """
    extended = extend_winograd_data(settings, data)
    channels, height, width = extended.shape
    lines, columns = height - 2, width - 2
    accumulators = np.zeros((weights.shape[0], lines, columns), np.int64)
    for top in range(0, lines, 2):
        for left in range(0, columns, 2):
            tile = np.zeros((channels, 4, 4), np.int64)
            for channel in range(channels):
                source = extended[channel, top : top + 4, left : left + 4]
                tile[channel] = _transform_tile(settings, source)
            for kernel in range(weights.shape[0]):
                for y, x in np.ndindex(2, 2):
                    total = 0
                    for start in range(0, channels, 4):
                        partial = _point(tile, weights[kernel], start, y, x)
                        total = saturate(total + partial, settings.accumulator_bits)
                    accumulators[kernel, top + y, left + x] = total
    return round_accumulators(accumulators, settings.clip_truncate)


def _transform_tile(settings: Convolution, source: Cube) -> Cube:
    """Return C^T d C, truncated."""
    transformed = np.zeros((4, 4), np.int64)
    for i, j in np.ndindex(4, 4):
        value = 0
        for a, b in np.ndindex(4, 4):
            value += int(_CT[i, a]) * int(source[a, b]) * int(_CT[j, b])
        rounded = shift_right(value, settings.pra_truncate)
        transformed[i, j] = saturate(rounded, settings.precision.width_bits)
    return transformed


def _point(tile: Cube, kernel: Cube, start: int, y: int, x: int) -> int:
    """Return one of the four results of one block of four channels."""
    total = 0
    for i, j in np.ndindex(4, 4):
        product = 0
        for channel in range(start, start + 4):
            product += int(tile[channel, i, j]) * int(kernel[channel, i, j])
        total += int(_AT[y, i]) * product * int(_AT[x, j])
    return total


def convolve_direct_half(
    settings: Convolution, data: HalfCube, weights: HalfWeights, *, nan_is_zero: bool = False
) -> dict[tuple[int, int, int], FloatSum]:
    """Convolve fp16 exactly; the answer names the bound that hardware must keep.

    Source: Precision Preservation, "FP16 error threshold" (without the output's own rounding
    term, which belongs to whoever rounds); In-memory data formats, "FP16 Supporting".
    """
    lines, columns = settings.output_shape(data.shape, weights.shape)
    results: dict[tuple[int, int, int], FloatSum] = {}
    for kernel, line, column in np.ndindex(weights.shape[0], lines, columns):
        products: list[Number] = []
        exponent = -60
        for channel, r, s in np.ndindex(weights.shape[1:]):
            place = _input_place(settings, line, column, r, s)
            one = _half_element(data, channel, place, nan_is_zero=nan_is_zero)
            other = read_half(
                float(weights[kernel, channel, r, s]),
                infinity=CONVOLUTION_INFINITY,
                nan_is_zero=nan_is_zero,
            )
            products.append(None if one is None or other is None else one * other)
            if one and other:
                exponent = max(exponent, (_exponent(one) & ~3) + (_exponent(other) & ~3))
        tolerance = Fraction(2) ** (exponent - 20) * len(products) * 2
        results[kernel, line, column] = FloatSum(_sum(products), tolerance)
    return results


def round_to_single(value: Number) -> Number:
    """Convert an accumulator to the 32 bits that the accumulator hands on in fp16."""
    return None if value is None else SINGLE.round(value)


def _half_element(
    data: HalfCube, channel: int, place: tuple[int, int], *, nan_is_zero: bool
) -> Number:
    """Read an element; fp16 padding is zero (Precision Preservation, "Padding")."""
    line, column = place
    if not (0 <= line < data.shape[1] and 0 <= column < data.shape[2]):
        return Fraction(0)
    element = float(data[channel, line, column])
    return read_half(element, infinity=CONVOLUTION_INFINITY, nan_is_zero=nan_is_zero)


def _exponent(value: Fraction) -> int:
    """Return the unbiased exponent of a half; a denormal has the lowest normal one's field."""
    return max(floor_log2(abs(value)), 1 - HALF.bias)


def _sum(values: list[Number]) -> Number:
    total = Fraction(0)
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _input_place(settings: Convolution, line: int, column: int, r: int, s: int) -> tuple[int, int]:
    return (
        line * settings.stride_y - settings.padding.top + r * settings.dilation_y,
        column * settings.stride_x - settings.padding.left + s * settings.dilation_x,
    )


def _element(data: Cube, channel: int, place: tuple[int, int], pad: int) -> int:
    line, column = place
    if 0 <= line < data.shape[1] and 0 <= column < data.shape[2]:
        return int(data[channel, line, column])
    return pad
