"""The small floating-point formats as float32 values: FP16 (5, 10) and FP17 (6, 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import FloatArray

FP16_MAXIMUM = np.float32(65504.0)


def round_to_fp16(values: np.ndarray) -> np.ndarray:
    """Round to fp16, nearest even; what overflows becomes the largest finite value."""
    with np.errstate(over="ignore", invalid="ignore"):
        clipped = np.where(np.isinf(values), values, np.clip(values, -FP16_MAXIMUM, FP16_MAXIMUM))
        return clipped.astype(np.float16)


def round_to_fp17(values: np.ndarray) -> FloatArray:
    """Round to 10 mantissa bits within FP17's exponents, nearest even."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.int64)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    result = rounded.astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), result, values).astype(np.float32)


def fp17_from_bits(word: int) -> float:
    """Return the value of an FP17 word: 1 sign, 6 exponent (bias 31), 10 mantissa bits."""
    sign = -1.0 if word >> 16 & 1 else 1.0
    exponent, mantissa = word >> 10 & 0x3F, word & 0x3FF
    if exponent == 0:
        return sign * mantissa * 2.0**-40
    if exponent == 0x3F:
        return float("nan") if mantissa else sign * float("inf")
    return sign * (1 + mantissa / 1024) * 2.0 ** (exponent - 31)


def fp16_from_bits(word: int) -> np.float32:
    """Return the value of an fp16 word."""
    return np.float32(np.uint16(word & 0xFFFF).view(np.float16))


def fp32_from_bits(word: int) -> np.float32:
    """Return the value of an fp32 word."""
    return np.float32(np.uint32(word & 0xFFFFFFFF).view(np.float32))
