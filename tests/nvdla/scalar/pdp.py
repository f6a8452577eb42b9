"""The planar data processor: maximum, minimum and average pooling, whole or split in width.

Source: NVDLA documentation, Unit Description, "Planar Data Processor"; Programming Guide, "PDP
programming" and the limits of section "PDP"; register manual, RECIP_KERNEL and PAD_VALUE_nX.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.nvdla.scalar.arithmetic import Cube, HalfCube, Precision, saturate, shift_right
from tests.nvdla.scalar.floats import FP17, Number, read_half, write_half

AVERAGE_INFINITY: Final = Fraction(4292870144)
"""What an average takes for infinity ("FP16 Supporting"): the largest FP17 number."""


class Method(IntEnum):
    """What POOLING_METHOD says."""

    AVERAGE = 0
    MAX = 1
    MIN = 2


@dataclass(frozen=True, slots=True)
class Split:
    """The widths of the strips: first, middle ones, last (D_PARTIAL_WIDTH_IN and _OUT)."""

    first_in: int
    first_out: int
    mid_in: int
    mid_out: int
    last_in: int
    last_out: int
    count: int

    def strips(self) -> list[tuple[int, int]]:
        """Return input and output width of every strip, from left to right."""
        middle = [(self.mid_in, self.mid_out)] * (self.count - 2)
        return [(self.first_in, self.first_out), *middle, (self.last_in, self.last_out)]


@dataclass(frozen=True, slots=True)
class Pooling:
    """A pooling's registers, as numbers.

    ``padding_values`` are PAD_VALUE_1X to 7X: the value of that many padding elements together.
    ``reciprocals`` are those of kernel width and height, times 2 ** 16.
    """

    method: Method
    precision: Precision
    kernel_width: int
    kernel_height: int
    stride_x: int
    stride_y: int
    pad_left: int = 0
    pad_right: int = 0
    pad_top: int = 0
    pad_bottom: int = 0
    padding_values: tuple[int, ...] = (0,) * 7
    reciprocals: tuple[int, int] = (0x10000, 0x10000)
    nan_is_zero: bool = False

    def output_shape(self, height: int, width: int) -> tuple[int, int]:
        """Return lines and columns of the output (Programming Guide, limits of PDP)."""
        return (
            (self.pad_top + height + self.pad_bottom - self.kernel_height) // self.stride_y + 1,
            (self.pad_left + width + self.pad_right - self.kernel_width) // self.stride_x + 1,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """The elements under one kernel, line by line, and how many of each line are padding."""

    lines: tuple[tuple[tuple[int, int], ...], ...]
    kernel_width: int


def pool_integers(settings: Pooling, data: Cube) -> Cube:
    """Pool int8 or int16."""
    channels, height, width = data.shape
    lines, columns = settings.output_shape(height, width)
    result = np.zeros((channels, lines, columns), np.int64)
    for channel, line, column in np.ndindex(result.shape):
        window = find_window(settings, (height, width), line, column)
        values = [[int(data[channel, y, x]) for y, x in places] for places in window.lines]
        result[channel, line, column] = _pool_window(settings, values)
    return result


def pool_in_strips(settings: Pooling, split: Split, data: Cube) -> Cube:
    """Pool strip by strip: each takes the columns that the one before it still needs as well.

    Source: Programming Guide, limits of PDP, split mode: a strip's new columns, the overlap
    ``kernel - stride`` with the one before, and its padding hold exactly its windows.
    """
    overlap = settings.kernel_width - settings.stride_x
    channels, height, _ = data.shape
    strips: list[Cube] = []
    end = 0
    for number, (new_columns, out_columns) in enumerate(split.strips()):
        start = 0 if number == 0 else end - overlap
        end += new_columns
        strip = data[:, :, start:end]
        is_last = number == split.count - 1
        part = replace(
            settings,
            pad_left=settings.pad_left if number == 0 else 0,
            pad_right=settings.pad_right if is_last else 0,
        )
        pooled = pool_integers(part, strip)
        expected = (channels, part.output_shape(height, strip.shape[2])[0], out_columns)
        assert pooled.shape == expected, "the strip's widths do not fit its windows"
        strips.append(pooled)
    return np.concatenate(strips, axis=2)


def find_window(settings: Pooling, size: tuple[int, int], line: int, column: int) -> Window:
    """Return the places of the cube under one kernel; a line of padding has none."""
    height, width = size
    top = line * settings.stride_y - settings.pad_top
    left = column * settings.stride_x - settings.pad_left
    places = tuple(
        tuple((y, x) for x in range(left, left + settings.kernel_width) if 0 <= x < width)
        if 0 <= y < height
        else ()
        for y in range(top, top + settings.kernel_height)
    )
    return Window(places, settings.kernel_width)


def _pool_window(settings: Pooling, lines: list[list[int]]) -> int:
    """Pool one window; padding counts in averages only (Programming Guide, register notes)."""
    values = [value for line in lines for value in line]
    if settings.method is Method.MAX:
        return max(values)
    if settings.method is Method.MIN:
        return min(values)
    total = sum(values)
    for line in lines:
        missing = settings.kernel_width - len(line)
        if missing == settings.kernel_width:  # no register holds 8 times the value
            total += settings.padding_values[0] * missing
        elif missing:
            total += settings.padding_values[missing - 1]
    for reciprocal in settings.reciprocals:
        total = shift_right(total * reciprocal, 16)
    return saturate(total, settings.precision.width_bits)


def pool_halves(settings: Pooling, data: HalfCube) -> HalfCube:
    """Pool fp16; averages are exact products with the reciprocals that FP17 can hold.

    Source: as above; Precision Preservation gives a threshold for averages and no order of sums,
    and ignores padding values in fp16.
    """
    channels, height, width = data.shape
    lines, columns = settings.output_shape(height, width)
    result = np.zeros((channels, lines, columns), np.float16)
    for channel, line, column in np.ndindex(result.shape):
        window = find_window(settings, (height, width), line, column)
        values = [
            read_half(
                float(data[channel, y, x]),
                infinity=AVERAGE_INFINITY,
                nan_is_zero=settings.nan_is_zero,
            )
            for places in window.lines
            for y, x in places
        ]
        result[channel, line, column] = write_half(_pool_numbers(settings, values))
    return result


def _pool_numbers(settings: Pooling, values: list[Number]) -> Number:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    if settings.method is Method.MAX:
        return max(numbers)
    if settings.method is Method.MIN:
        return min(numbers)
    total = sum(numbers, Fraction(0))
    for size in (settings.kernel_width, settings.kernel_height):
        total *= FP17.round(Fraction(1, size))
    return total


def find_peaks(settings: Pooling, data: HalfCube) -> npt.NDArray[np.float64]:
    """Return the largest magnitude in every window, which the threshold of averages refers to.

    Source: Precision Preservation, "FP16 error threshold". Its two conditions cannot both hold (a
    half above 0.25 is coarser than 0.0001), so either one is taken to be enough.
    """
    channels, height, width = data.shape
    peaks = np.zeros((channels, *settings.output_shape(height, width)))
    for channel, line, column in np.ndindex(peaks.shape):
        window = find_window(settings, (height, width), line, column)
        peaks[channel, line, column] = max(
            abs(float(data[channel, y, x])) for places in window.lines for y, x in places
        )
    return peaks
