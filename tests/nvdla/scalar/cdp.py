"""The cross-channel data processor: local response normalisation, or a table alone.

Source: NVDLA documentation, Unit Description, "Cross Channel Data Processor"; Precision
Preservation, "CDP convertors"; register manual, DATIN_* and DATOUT_*. The input converter makes
int8 nine bits and int16 seventeen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.nvdla.scalar.arithmetic import UNCHANGED, Converter, Cube, HalfCube, Precision
from tests.nvdla.scalar.floats import Number, read_half, write_half
from tests.nvdla.scalar.lut import (
    CDP_WIDTHS,
    FloatLut,
    Lut,
    LutStatistics,
    look_up,
    look_up_float,
)

CDP_INFINITY: Final = Fraction(4292870144)
"""What the unit takes for infinity ("FP16 Supporting")."""


@dataclass(frozen=True, slots=True)
class Normalization:
    """The unit's registers; ``local_size`` is 3, 5, 7 or 9 channels."""

    precision: Precision
    lut: Lut
    local_size: int = 3
    input_converter: Converter = UNCHANGED
    output_converter: Converter = UNCHANGED
    skips_square_sum: bool = False
    skips_multiplier: bool = False


@dataclass(slots=True)
class NormalizationResult:
    """The output cube and the table's counters."""

    cube: Cube
    saturation_count: int = 0
    lut: LutStatistics = field(default_factory=LutStatistics)


def normalize_integers(settings: Normalization, data: Cube) -> NormalizationResult:
    """Normalise int8 or int16: ``x * f(sum of x squared)``, each part of which may be skipped."""
    result = NormalizationResult(np.zeros_like(data))
    inner_bits = settings.precision.width_bits + 1
    wide = np.zeros_like(data)
    for index in np.ndindex(data.shape):
        wide[index] = settings.input_converter.apply(int(data[index]), inner_bits)
    for index in np.ndindex(data.shape):
        own = int(wide[index])
        level = own if settings.skips_square_sum else _sum_squares(settings.local_size, wide, index)
        answer = look_up(settings.lut, level, CDP_WIDTHS, result.lut)
        product = answer if settings.skips_multiplier else own * answer
        bits = settings.precision.width_bits
        result.cube[index] = settings.output_converter.apply(product, bits)
        unlimited = settings.output_converter.apply(product, 128)
        result.saturation_count += int(int(result.cube[index]) != unlimited)
    return result


def _sum_squares(local_size: int, wide: Cube, index: tuple[int, ...]) -> int:
    """Sum squares over neighbouring channels; there are none outside the cube."""
    channel, line, column = index
    reach = local_size // 2
    neighbours = range(max(0, channel - reach), min(wide.shape[0], channel + reach + 1))
    return sum(int(wide[neighbour, line, column]) ** 2 for neighbour in neighbours)


@dataclass(frozen=True, slots=True)
class FloatNormalization:
    """The unit's registers in fp16, which has no converters."""

    lut: FloatLut
    local_size: int = 3
    skips_square_sum: bool = False
    skips_multiplier: bool = False
    nan_is_zero: bool = False


def normalize_halves(settings: FloatNormalization, data: HalfCube) -> HalfCube:
    """Normalise fp16 exactly and round once.

    Source: as above; Precision Preservation has a threshold for this unit.
    """
    result = np.zeros(data.shape, np.float16)
    numbers: dict[tuple[int, ...], Number] = {
        index: read_half(
            float(data[index]), infinity=CDP_INFINITY, nan_is_zero=settings.nan_is_zero
        )
        for index in np.ndindex(data.shape)
    }
    for index in np.ndindex(data.shape):
        own = numbers[index]
        level = own
        if not settings.skips_square_sum:
            channel, line, column = index
            reach = settings.local_size // 2
            around = range(max(0, channel - reach), min(data.shape[0], channel + reach + 1))
            level = _sum_number_squares([numbers[c, line, column] for c in around])
        answer = look_up_float(settings.lut, level)
        if not settings.skips_multiplier:
            answer = None if answer is None or own is None else answer * own
        result[index] = write_half(answer)
    return result


def _sum_number_squares(values: list[Number]) -> Number:
    total = Fraction(0)
    for value in values:
        if value is None:
            return None
        total += value * value
    return total


def find_levels(settings: FloatNormalization, data: HalfCube) -> npt.NDArray[np.float64]:
    """Return what each table look-up is for, which the threshold in fp16 refers to.

    Source: Precision Preservation, "FP16 error threshold" (the largest number of a square sum's
    window; that of pooling says why one of its two conditions is enough).
    """
    squares = data.astype(np.float64) ** 2
    if settings.skips_square_sum:
        return np.sqrt(squares)
    levels = np.zeros(data.shape)
    reach = settings.local_size // 2
    for channel in range(data.shape[0]):
        levels[channel] = squares[max(0, channel - reach) : channel + reach + 1].sum(axis=0)
    return levels
