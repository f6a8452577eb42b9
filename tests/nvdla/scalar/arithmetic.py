"""Whole numbers as the engine's converters and truncations treat them.

Source: NVDLA documentation, Precision Preservation (converter, truncate, shifter).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Cube: TypeAlias = npt.NDArray[np.int64]
"""Whole numbers, as channel, line, column."""
HalfCube: TypeAlias = npt.NDArray[np.float16]
"""Half-precision numbers, as channel, line, column."""


class Precision(IntEnum):
    """A precision, with the number that every precision field of the registers holds."""

    INT8 = 0
    INT16 = 1
    FP16 = 2

    @property
    def byte_count(self) -> int:
        """The bytes of one element in memory."""
        return 1 if self is Precision.INT8 else 2

    @property
    def width_bits(self) -> int:
        """The bits of one element in memory."""
        return 8 * self.byte_count


def saturate(value: int, bits: int) -> int:
    """Return the nearest number that fits in ``bits`` bits of two's complement."""
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, value))


def shift_right(value: int, shift: int) -> int:
    """Divide by a power of two, rounding to nearest and halves away from zero."""
    if shift == 0:
        return value
    magnitude = (abs(value) + (1 << shift - 1)) >> shift
    return magnitude if value >= 0 else -magnitude


def shift_signed(value: int, shift: int) -> int:
    """Shift right by a positive amount, with rounding, and left by a negative one."""
    return shift_right(value, shift) if shift >= 0 else value << -shift


def sign_extend(value: int, bits: int) -> int:
    """Read the low ``bits`` bits as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


@dataclass(frozen=True, slots=True)
class Converter:
    """A converter's registers: ``(x - offset) * scale >> shift``."""

    offset: int = 0
    scale: int = 1
    shift: int = 0

    def apply(self, value: int, bits: int) -> int:
        """Convert one number; the answer saturates to ``bits`` bits.

        Source: Precision Preservation, "Convertor".
        """
        return saturate(shift_right((value - self.offset) * self.scale, self.shift), bits)


UNCHANGED: Final = Converter()
"""A converter that only saturates."""
