"""The integer arithmetic that all engines share: rounding shifts and saturation.

A right shift rounds to nearest, halves away from zero, and a result is clamped to the output's
width. Values are int64: every intermediate of the hardware has fewer than 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import Array


def saturate(values: Array, bits: int) -> Array:
    """Clamp to a signed width."""
    limit = 1 << (bits - 1)
    return np.clip(values, -limit, limit - 1)


def shift_right_rounded(values: Array, shift: int) -> Array:
    """Divide by 2**shift, rounding halves away from zero."""
    if shift == 0:
        return values
    if shift > 62:
        return np.zeros_like(values)
    magnitude = np.abs(values)
    rounded = (magnitude >> shift) + ((magnitude >> (shift - 1)) & 1)
    return np.where(values < 0, -rounded, rounded)


def shift_right_saturated(values: Array, shift: int, bits: int) -> Array:
    """Shift right with rounding, then clamp."""
    return saturate(shift_right_rounded(values, shift), bits)


def shift_left_saturated(values: Array, shift: int, bits: int) -> Array:
    """Shift left and clamp, for any shift."""
    limit = 1 << (bits - 1)
    shift = min(shift, bits)
    high = (limit - 1) >> shift
    low = -(limit >> shift)
    shifted = np.clip(values, low, high) << shift
    return np.where(values > high, limit - 1, np.where(values < low, -limit, shifted))


def shift_signed_saturated(values: Array, shift: int, bits: int) -> Array:
    """Shift right with rounding, or left for a negative shift, then clamp."""
    if shift < 0:
        return shift_left_saturated(values, -shift, bits)
    return shift_right_saturated(values, shift, bits)


def sign_extend(word: int, bits: int) -> int:
    """Return the signed value of a word's low bits."""
    word &= (1 << bits) - 1
    return word - (1 << bits) if word >> (bits - 1) else word
