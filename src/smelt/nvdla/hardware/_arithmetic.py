"""Arithmetic of all engines: integers, and floating point in FP16, FP17 and FP32.

A right shift of integers rounds to nearest, with ties away from zero, and a result is clamped to
the width of the output. Values are int64: every intermediate value of the hardware has fewer than
64 bits.

Floating-point numbers are float64 arrays that represent the hardware's formats exactly: FP16 (5
exponent bits, 10 mantissa bits), FP17 (6, 10) and FP32. Operations round to nearest even. Values
that are too large become the largest finite value; values that are too small become 0 (only FP16
has denormal numbers). A sum of zero has the sign of its first operand. If an operand is a NaN, the
result is that NaN, the first operand's before the second's; the payload in the lowest bits of its
mantissa is kept in every format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla.hardware._memory import Array, FloatArray

    Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Operation of two operands, on integers or in a floating-point format."""


def saturate(values: Array, bits: int) -> Array:
    """Clamp values to a signed integer of ``bits`` bits."""
    limit = 1 << (bits - 1)
    return np.clip(values, -limit, limit - 1)


def shift_right_rounded(values: Array, shift: int) -> Array:
    """Divide by 2**shift, rounding to nearest with ties away from zero."""
    if shift == 0:
        return values
    if shift > 62:
        return np.zeros_like(values)
    magnitude = np.abs(values)
    rounded = (magnitude >> shift) + ((magnitude >> (shift - 1)) & 1)
    return np.where(values < 0, -rounded, rounded)


def shift_right_saturated(values: Array, shift: int, bits: int) -> Array:
    """Shift right with rounding, then clamp to ``bits`` bits."""
    return saturate(shift_right_rounded(values, shift), bits)


def shift_left_saturated(values: Array, shift: int, bits: int) -> Array:
    """Shift left by any amount and clamp to ``bits`` bits."""
    limit = 1 << (bits - 1)
    shift = min(shift, bits)
    high = (limit - 1) >> shift
    low = -(limit >> shift)
    shifted = np.clip(values, low, high) << shift
    return np.where(values > high, limit - 1, np.where(values < low, -limit, shifted))


def shift_signed_saturated(values: Array, shift: int, bits: int) -> Array:
    """Shift right with rounding, or left if the shift is negative, then clamp to ``bits`` bits."""
    if shift < 0:
        return shift_left_saturated(values, -shift, bits)
    return shift_right_saturated(values, shift, bits)


def sign_extend(word: int, bits: int) -> int:
    """Return the low ``bits`` bits of a word as a signed number."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Floating-point format: precision, smallest and largest normal value."""

    bits: int
    """Bits of the mantissa, with the leading one."""
    smallest: float
    largest: float


_FLOAT64_NAN = np.uint64(0x7FF8 << 48)
_FP16_MANTISSA, _FP16_INFINITY = np.uint64(0x3FF), np.uint64(0x7C00)
_FP32_MANTISSA = np.uint64(0x7FFFFF)
_FP32_NAN = np.uint32(0x7F800200).view(np.float32)
"""NaN of double-precision sums: the payload of fp16's quiet NaN in the lowest bits."""

FP16 = FloatFormat(11, 2.0**-14, 65504.0)
FP17 = FloatFormat(11, 2.0**-30, (2 - 2.0**-10) * 2.0**31)
FP32 = FloatFormat(24, 2.0**-126, (2 - 2.0**-23) * 2.0**127)


def round_to(values: np.ndarray, target: FloatFormat) -> FloatArray:
    """Round values to a format, without denormal numbers."""
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
    """Return the larger values; +0 is larger than -0."""
    return _keep_nan(first, second, np.where(_is_larger(first, second), first, second))


def minimum(first: np.ndarray, second: np.ndarray) -> FloatArray:
    """Return the smaller values; -0 is smaller than +0."""
    return _keep_nan(first, second, np.where(_is_larger(first, second), second, first))


def _is_larger(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    zeros = (first == 0) & (second == 0) & ~np.signbit(first) & np.signbit(second)
    return np.asarray((first > second) | zeros)


def differs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return where values differ; +0 and -0 differ, two NaNs do not."""
    both_nan = np.isnan(first) & np.isnan(second)
    unequal = (first != second) | (np.signbit(first) != np.signbit(second))
    return np.asarray(unequal & ~both_nan)


def widen(values: np.ndarray, target: FloatFormat) -> FloatArray:
    """Return fp16 or fp32 values in a wider format; infinity becomes its largest value."""
    wide = values.astype(np.float64)
    finite = np.where(np.isinf(wide), np.copysign(target.largest, wide), wide)
    is_nan = np.isnan(wide)
    if is_nan.any():
        finite = np.where(is_nan, _widen_nans(values), finite)
    return finite


def _widen_nans(values: np.ndarray) -> FloatArray:
    """Return float64 NaNs with the signs and payloads of fp16 or fp32 NaNs."""
    if values.dtype == np.float32:
        words = values.view(np.uint32).astype(np.uint64)
        return _make_nan(words >> np.uint64(31), words & _FP32_MANTISSA)
    words = values.view(np.uint16).astype(np.uint64)
    return _make_nan(words >> np.uint64(15), words & _FP16_MANTISSA)


def _make_nan(sign: np.ndarray, mantissa: np.ndarray) -> FloatArray:
    """Return float64 NaNs with payloads of up to 23 bits in their lowest bits."""
    words: np.ndarray = sign << np.uint64(63) | _FLOAT64_NAN | mantissa
    return words.view(np.float64)


def extend_infinities(values: np.ndarray) -> np.ndarray:
    """Replace the infinities of fp16 values by 65536, as which the multipliers read them."""
    infinite = np.isinf(values)
    if not infinite.any():
        return values
    return np.where(infinite, np.copysign(65536.0, values), values)


def sums_to_fp32(sums: np.ndarray) -> np.ndarray:
    """Return double-precision sums of fp16 products in fp32.

    All NaNs become the same one, because their payloads depend on the order of additions.
    """
    return np.where(np.isnan(sums), _FP32_NAN, sums.astype(np.float32))


def round_to_fp16(values: np.ndarray) -> np.ndarray:
    """Round float64 values to fp16, with denormal numbers."""
    clipped = np.clip(values, -FP16.largest, FP16.largest)
    # Rounding to fp32 first and to fp16 afterwards would be wrong for some values.
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
    """Return the value of an FP17 word: 1 sign bit, 6 exponent bits (bias 31), 10 mantissa bits."""
    return _from_bits(word, 6, 10)


def fp32_from_bits(word: int) -> np.ndarray:
    """Return the value of an fp32 word, as the hardware's adders read it."""
    return _from_bits(word & 0xFFFFFFFF, 8, 23)


def _from_bits(word: int, exponent_bits: int, mantissa_bits: int) -> np.ndarray:
    """Return the value of a word.

    Every word but 0 has a leading one, so there are no denormal numbers. The largest exponent with
    a mantissa of 0, infinity elsewhere, is the next power of two.
    """
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
