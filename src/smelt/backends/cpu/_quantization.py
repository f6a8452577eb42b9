"""Quantising and dequantising registers: for elementwise programs and for kernels of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cpu._emit import Reg, element_type, type_suffix
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter

LIMITS: Final = {
    DType.UINT8: (0, 255),
    DType.INT8: (-128, 127),
    DType.UINT16: (0, 65535),
    DType.INT16: (-32768, 32767),
}
"""What quantised results can hold."""

_ROUNDING: Final = 1.5 * 2**23
QUANTIZED: Final = frozenset({*LIMITS, DType.INT32})
"""What can be dequantised."""


def quantized(e: Emitter, steps: Reg, zero: Reg | None, dtype: DType) -> Reg:
    """Whole steps above a zero point (of ``dtype``), saturated; what is not a number is the least.

    Bounds come before rounding, in floating point: integers beyond int32 could not be told apart
    after it.
    """
    bounded, wide = _bounded(e, steps, zero, dtype)
    whole = nearest_integer(e, bounded)
    if wide is not None:
        whole = e.binary("add", whole, wide)
    return e.convert("trunc", whole, "i8" if dtype.size_bytes == 1 else "i16")


def round_to_quantized(e: Emitter, steps: Reg, zero: Reg | None, dtype: DType) -> Reg:
    """What `quantized` would give, less the zero point and as floats."""
    bounded, _ = _bounded(e, steps, zero, dtype)
    # Floats of this size lie 1 apart, so that the sum is rounded as it should be.
    large = e.constant(_ROUNDING, steps.type)
    return e.binary("fsub", e.binary("fadd", bounded, large), large)


def _bounded(e: Emitter, steps: Reg, zero: Reg | None, dtype: DType) -> tuple[Reg, Reg | None]:
    """The steps within what the type holds above the zero point; and the zero point, widened."""
    low, high = (e.constant(float(x), steps.type) for x in LIMITS[dtype])
    wide = None
    if zero is not None:
        wide = _widened(e, zero, dtype, "i32")
        above = e.convert("sitofp", wide, "float")
        low, high = e.binary("fsub", low, above), e.binary("fsub", high, above)
    bounded = e.select(e.compare_float("ogt", steps, low), steps, low)
    return e.select(e.compare_float("olt", bounded, high), bounded, high), wide


def nearest_integer(e: Emitter, x: Reg) -> Reg:
    """The nearest i32, halves to even, of floats that have one."""
    whole = x.type.replace("float", "i32")
    return e.call(whole, f"llvm.lrint.{type_suffix(whole)}.{type_suffix(x.type)}", x)


def dequantized(e: Emitter, x: Reg, scale: Reg, zero: Reg | None, dtype: DType) -> Reg:
    """``(x - zero) * scale`` as a float."""
    # A difference of two bytes or words fits into 32 bits, one of two int32 does not.
    element = "i64" if dtype is DType.INT32 and zero is not None else "i32"
    steps = _widened(e, x, dtype, element)
    if zero is not None:
        steps = e.binary("sub", steps, _widened(e, zero, dtype, element))
    return e.binary("fmul", e.convert("sitofp", steps, "float"), scale)


def _widened(e: Emitter, x: Reg, dtype: DType, element: str) -> Reg:
    if element_type(x.type) == element:
        return x
    return e.convert("zext" if dtype.value.startswith("u") else "sext", x, element)
