"""Floating point by fractions: exact values, one rounding where the documentation has one.

Source: NVDLA documentation, In-memory data formats, "FP16 Supporting": no infinity leaves a unit,
NaN propagates (or counts as zero), halves have denormals, wider formats flush them, rounding is to
nearest. The documentation does not name the tie rule; IEEE 754's even rule is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from tests.nvdla.scalar.arithmetic import HalfCube

Number: TypeAlias = Fraction | None
"""A number, or None for what is not a number."""

LARGEST_HALF: Final = Fraction(65504)


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format."""

    exponent_bits: int
    mantissa_bits: int
    has_denormals: bool

    @property
    def bias(self) -> int:
        """What is added to an exponent before it is stored."""
        return (1 << self.exponent_bits - 1) - 1

    @property
    def largest(self) -> Fraction:
        """The largest number that the format has."""
        return (2 - Fraction(1, 1 << self.mantissa_bits)) * Fraction(2) ** self.bias

    def round(self, value: Fraction) -> Fraction:
        """Return the nearest number of the format (even ties), the largest one on overflow."""
        if value == 0:
            return value
        lowest = 1 - self.bias
        exponent = max(floor_log2(abs(value)), lowest)
        unit = Fraction(2) ** (exponent - self.mantissa_bits)
        rounded = round(value / unit) * unit  # Python rounds fractions to even
        if abs(rounded) > self.largest:
            return self.largest if value > 0 else -self.largest
        if not self.has_denormals and abs(rounded) < Fraction(2) ** lowest:
            return Fraction(0)
        return rounded


HALF: Final = Format(exponent_bits=5, mantissa_bits=10, has_denormals=True)
FP17: Final = Format(exponent_bits=6, mantissa_bits=10, has_denormals=False)
SINGLE: Final = Format(exponent_bits=8, mantissa_bits=23, has_denormals=False)


def floor_log2(value: Fraction) -> int:
    """Return the largest power of two's exponent that is not above a positive number."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def read_half(value: float, *, infinity: Fraction, nan_is_zero: bool = False) -> Number:
    """Read an element of memory; each unit has its own finite number for infinity."""
    if math.isnan(value):
        return Fraction(0) if nan_is_zero else None
    if math.isinf(value):
        return infinity if value > 0 else -infinity
    return Fraction(value)


def write_half(value: Number) -> np.float16:
    """Round to the half that is written to memory."""
    return np.float16(np.nan) if value is None else np.float16(float(HALF.round(value)))


def halves_are_close(
    actual: HalfCube,
    expected: HalfCube,
    *,
    absolute: float = 0,
    relative: float = 0,
    units: int = 0,
) -> bool:
    """Tell whether every pair differs by no more than a bound; NaN equals only NaN.

    The bound is the largest of ``absolute``, ``relative`` times the expected magnitude and
    ``units`` units in the last place of the expected half.
    """
    if actual.shape != expected.shape:
        return False
    for one, other in zip(actual.flat, expected.flat, strict=True):
        if np.isnan(one) != np.isnan(other):
            return False
        magnitude = abs(float(other))
        last_place = 2.0 ** (max(math.frexp(magnitude)[1] - 1, -14) - 10)
        bound = max(absolute, relative * magnitude, units * last_place)
        if not np.isnan(one) and abs(float(one) - float(other)) > bound:
            return False
    return True
