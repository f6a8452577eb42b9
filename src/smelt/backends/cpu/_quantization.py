"""Quantisation and dequantisation of registers, for elementwise programs and quantise kernels."""

from __future__ import annotations

from typing import Final

from smelt.backends.cpu._emit import Emitter, Reg, element_type, type_suffix
from smelt.types import DType

LIMITS: Final = {
    DType.UINT8: (0, 255),
    DType.INT8: (-128, 127),
    DType.UINT16: (0, 65535),
    DType.INT16: (-32768, 32767),
}
"""Smallest and largest value of each type of quantised result."""

_ROUNDING: Final = 1.5 * 2**23
"""1.5 * 2**23. Adding and subtracting it rounds a float32 of smaller magnitude to an integer,
halves to even."""
QUANTIZED: Final = frozenset({*LIMITS, DType.INT32})
"""Types that can be dequantised."""


def quantized(e: Emitter, steps: Reg, zero: Reg | None, dtype: DType) -> Reg:
    """Return the nearest integers plus the zero point, saturated to ``dtype``.

    NaN becomes the smallest value. The bounds are applied before rounding, in floating point,
    because values beyond int32 cannot be told apart after the conversion to int32. ``steps`` is the
    real value divided by the scale, as float32; ``zero`` has the type ``dtype``.
    """
    bounded, wide = _bounded(e, steps, zero, dtype)
    rounded = nearest_integer(e, bounded)
    if wide is not None:
        rounded = e.binary("add", rounded, wide)
    return e.convert("trunc", rounded, "i8" if dtype.size_bytes == 1 else "i16")


def round_to_quantized(e: Emitter, steps: Reg, zero: Reg | None, dtype: DType) -> Reg:
    """Return the result of `quantized` minus the zero point, as float32."""
    bounded, _ = _bounded(e, steps, zero, dtype)
    # float32 values of this magnitude are 1 apart, so the addition rounds to an integer.
    large = e.constant(_ROUNDING, steps.type)
    return e.binary("fsub", e.binary("fadd", bounded, large), large)


def _bounded(e: Emitter, steps: Reg, zero: Reg | None, dtype: DType) -> tuple[Reg, Reg | None]:
    """Return the steps limited to the range of ``dtype``, and the zero point as i32.

    The limits are relative to the zero point, which is not added yet.
    """
    low, high = (e.constant(float(x), steps.type) for x in LIMITS[dtype])
    wide = None
    if zero is not None:
        wide = _widened(e, zero, dtype, "i32")
        above = e.convert("sitofp", wide, "float")
        low, high = e.binary("fsub", low, above), e.binary("fsub", high, above)
    bounded = e.select(e.compare_float("ogt", steps, low), steps, low)
    return e.select(e.compare_float("olt", bounded, high), bounded, high), wide


def nearest_integer(e: Emitter, x: Reg) -> Reg:
    """Return the nearest i32, halves to even, of float32 values in the range of int32."""
    kind = x.type.replace("float", "i32")
    return e.call(kind, f"llvm.lrint.{type_suffix(kind)}.{type_suffix(x.type)}", x)


def dequantized(e: Emitter, x: Reg, scale: Reg, zero: Reg | None, dtype: DType) -> Reg:
    """Return ``(x - zero) * scale`` as float32."""
    # Differences of 8-bit and 16-bit integers fit into 32 bits; those of two int32 do not.
    element = "i64" if dtype is DType.INT32 and zero is not None else "i32"
    steps = _widened(e, x, dtype, element)
    if zero is not None:
        steps = e.binary("sub", steps, _widened(e, zero, dtype, element))
    return e.binary("fmul", e.convert("sitofp", steps, "float"), scale)


def as_float(e: Emitter, x: Reg, dtype: DType) -> Reg:
    """Return a value of type ``dtype`` as a floating-point one."""
    if dtype.is_float:
        return x
    return e.convert("uitofp" if dtype.value.startswith("u") else "sitofp", x, "float")


def _widened(e: Emitter, x: Reg, dtype: DType, element: str) -> Reg:
    """Return an integer of type ``dtype`` extended to the LLVM type ``element``."""
    if element_type(x.type) == element:
        return x
    return e.convert("zext" if dtype.value.startswith("u") else "sext", x, element)
