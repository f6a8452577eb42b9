"""Integer arithmetic of all engines: rounding shifts and saturation.

A right shift rounds to nearest, with ties away from zero, and a result is clamped to the width of
the output. Values are int64: every intermediate value of the hardware has fewer than 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import Array


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
