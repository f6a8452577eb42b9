"""Floating point as the hardware has it, in float64 arrays that hold every format exactly.

Formats: FP16 (5 exponent, 10 mantissa bits), FP17 (6, 10) and FP32. An operation rounds to nearest
even; what is too large becomes the largest finite value, what is too small zero (FP16 alone has
denormal numbers), and a sum of zero has the sign of its first operand. A NaN goes through, the
first operand's before the second's; the number in its mantissa stays as it is, in the lowest bits
of every format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import FloatArray


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A format: its precision and its smallest and largest normal values."""

    bits: int
    """Of the mantissa, with the leading one."""
    smallest: float
    largest: float


_FLOAT64_NAN = np.uint64(0x7FF8 << 48)
_FP16_MANTISSA, _FP16_INFINITY = np.uint64(0x3FF), np.uint64(0x7C00)
_FP32_MANTISSA = np.uint64(0x7FFFFF)
_FP32_NAN = np.uint32(0x7F800200).view(np.float32)
"""The NaN of double-precision sums: fp16's quiet one, its number in the lowest bits."""

FP16 = FloatFormat(11, 2.0**-14, 65504.0)
FP17 = FloatFormat(11, 2.0**-30, (2 - 2.0**-10) * 2.0**31)
FP32 = FloatFormat(24, 2.0**-126, (2 - 2.0**-23) * 2.0**127)


def round_to(values: np.ndarray, target: FloatFormat) -> FloatArray:
    """Round to a format without denormal numbers."""
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, target.bits)), exponent - target.bits)
    clamped = np.clip(rounded, -target.largest, target.largest)
    flushed = np.where(np.abs(clamped) < target.smallest, np.copysign(0.0, clamped), clamped)
    return np.where(np.isnan(values), values, flushed)


def add(first: np.ndarray, second: np.ndarray, target: FloatFormat) -> FloatArray:
    """Return the rounded sum, with the sign of the larger operand."""
    larger = np.where(np.abs(first) >= np.abs(second), first, second)
    total = np.copysign(np.abs(first + second), larger)
    return _keep_nan(first, second, round_to(total, target))


def subtract(first: np.ndarray, second: np.ndarray, target: FloatFormat) -> FloatArray:
    """Return the rounded difference."""
    return add(first, -np.asarray(second), target)


def multiply(first: np.ndarray, second: np.ndarray, target: FloatFormat) -> FloatArray:
    """Return the rounded product."""
    return _keep_nan(first, second, round_to(first * second, target))


def _keep_nan(first: np.ndarray, second: np.ndarray, result: np.ndarray) -> FloatArray:
    return np.where(np.isnan(first), first, np.where(np.isnan(second), second, result))


def maximum(first: np.ndarray, second: np.ndarray) -> FloatArray:
    """Return the larger, +0 being larger than -0."""
    return _keep_nan(first, second, np.where(_is_larger(first, second), first, second))


def minimum(first: np.ndarray, second: np.ndarray) -> FloatArray:
    """Return the smaller, -0 being smaller than +0."""
    return _keep_nan(first, second, np.where(_is_larger(first, second), second, first))


def _is_larger(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    zeros = (first == 0) & (second == 0) & ~np.signbit(first) & np.signbit(second)
    larger: np.ndarray = (first > second) | zeros
    return larger


def differs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return where words are unequal; +0 is not -0."""
    both_nan = np.isnan(first) & np.isnan(second)
    unequal = (first != second) | (np.signbit(first) != np.signbit(second))
    found: np.ndarray = unequal & ~both_nan
    return found


def widen(values: np.ndarray, target: FloatFormat) -> FloatArray:
    """Return fp16 or fp32 values in a wider format: infinity becomes its largest value."""
    wide = values.astype(np.float64)
    finite = np.where(np.isinf(wide), np.copysign(target.largest, wide), wide)
    is_nan = np.isnan(wide)
    if is_nan.any():
        finite = np.where(is_nan, _widen_nans(values), finite)
    return finite


def _widen_nans(values: np.ndarray) -> FloatArray:
    """Return NaNs with the sign and number of fp16 or fp32 ones."""
    if values.dtype == np.float32:
        words = values.view(np.uint32).astype(np.uint64)
        return _make_nan(words >> np.uint64(31), words & _FP32_MANTISSA)
    words = values.view(np.uint16).astype(np.uint64)
    return _make_nan(words >> np.uint64(15), words & _FP16_MANTISSA)


def _make_nan(sign: np.ndarray, mantissa: np.ndarray) -> FloatArray:
    """Return float64 NaNs with a mantissa of up to 23 bits in their lowest."""
    words: np.ndarray = sign << np.uint64(63) | _FLOAT64_NAN | mantissa
    return words.view(np.float64)


def extend_infinities(values: np.ndarray) -> np.ndarray:
    """Return fp16 values with infinities as the multipliers read them: the next power of two."""
    infinite = np.isinf(values)
    if not infinite.any():
        return values
    return np.where(infinite, np.copysign(65536.0, values), values)


def sums_to_fp32(sums: np.ndarray) -> np.ndarray:
    """Return double-precision sums of fp16 products in fp32.

    Which NaN comes out of them depends on the order of additions, so all become the same one.
    """
    return np.where(np.isnan(sums), _FP32_NAN, sums.astype(np.float32))


def round_to_fp16(values: np.ndarray) -> np.ndarray:
    """Round to fp16 with its denormal numbers."""
    clipped = np.clip(values, -FP16.largest, FP16.largest)
    # Two roundings, first to fp32, would be wrong for the values in between.
    unit = np.exp2(np.maximum(np.frexp(clipped)[1] - FP16.bits, -24))
    rounded = np.copysign(np.rint(clipped / unit) * unit, clipped)
    halves: np.ndarray = np.clip(rounded, -FP16.largest, FP16.largest).astype(np.float16)
    is_nan = np.isnan(values)
    if is_nan.any():
        words = np.ascontiguousarray(values).view(np.uint64)
        nans = words >> np.uint64(48) & np.uint64(0x8000) | _FP16_INFINITY | words & _FP16_MANTISSA
        halves = np.where(is_nan, nans.astype(np.uint16).view(np.float16), halves)
    return halves


def fp17_from_bits(word: int) -> np.ndarray:
    """Return the value of an FP17 word: 1 sign, 6 exponent (bias 31), 10 mantissa bits."""
    return _from_bits(word, 6, 10)


def fp32_from_bits(word: int) -> np.ndarray:
    """Return the value of an fp32 word as the hardware's adders read it."""
    return _from_bits(word & 0xFFFFFFFF, 8, 23)


def _from_bits(word: int, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Read a word: only all zeros lack the leading one, and infinity is the next power of two."""
    top = (1 << exponent_bits) - 1
    mantissa = word & ((1 << mantissa_bits) - 1)
    exponent = word >> mantissa_bits & top
    sign = -1.0 if word >> (mantissa_bits + exponent_bits) & 1 else 1.0
    if exponent == top and mantissa:
        return _make_nan(np.array(sign < 0, np.uint64), np.array(mantissa, np.uint64))
    if not exponent and not mantissa:
        return np.array(sign * 0.0)
    scale = 2.0 ** (exponent - (top >> 1))
    return np.array(sign * (1 + mantissa / (1 << mantissa_bits)) * scale)


def fp16_from_bits(word: int, target: FloatFormat) -> np.ndarray:
    """Return the value of an fp16 word in a wider format."""
    return widen(np.array(word & 0xFFFF, np.uint16).view(np.float16), target)
