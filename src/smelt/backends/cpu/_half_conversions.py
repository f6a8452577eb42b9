"""Conversions of float16 and bfloat16 for targets without an exact instruction.

Generators write LLVM's ``fpext`` and ``fptrunc``. Where the target has no instruction, LLVM calls a
function of the compiler's runtime library, which an image does not have. The x86 instruction that
converts to bfloat16, which LLVM also uses between two extensions, treats denormal numbers as zero.
Such lines are replaced by integer arithmetic that is exact and rounds to nearest even. A NaN
remains a NaN of its sign and becomes quiet.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu._emit import Emitter, Reg, element_type
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget

_TYPE: Final = r"(?:<\d+ x \w+>|\w+)"
"""Matches an LLVM type."""
_CONVERSION: Final = re.compile(
    rf"^ *(?P<name>\S+) = fp(?:ext|trunc) (?P<kind>{_TYPE}) (?P<text>.+) to (?P<made>{_TYPE})$",
    re.MULTILINE,
)
"""Matches a line with an fpext or fptrunc instruction."""
_BIAS: Final = (127 - 15) << 23
"""Difference of the exponent biases of float32 and float16, in float32's exponent field."""
_INFINITY: Final = 0x7F800000
"""Bits of infinity as a float32."""
_QUIET: Final = 0x400000
"""Bit that makes a NaN of float32 quiet."""


def lower_half_conversions(ir_text: str, target: CpuTarget) -> str:
    """Return the module with integer code for the conversions that ``target`` does not have."""
    types = {"half": DType.FLOAT16, "bfloat": DType.BFLOAT16}
    foreign = {
        name for name, dtype in types.items() if not target.has_conversion_instruction(dtype)
    }
    if target.architecture == "x86_64":
        foreign.add("bfloat")

    def lowered(line: re.Match[str]) -> str:
        value = Reg(line["text"], line["kind"])
        pair = element_type(value.type), element_type(line["made"])
        if pair not in _LOWERINGS or foreign.isdisjoint(pair):
            return line[0]
        e = _ReplacementEmitter(line["name"], 0)
        bits = _LOWERINGS[pair](e, value)
        return "\n".join([*e.lines, f"  {line['name']} = bitcast {bits} to {line['made']}"])

    return _CONVERSION.sub(lowered, ir_text) if foreign else ir_text


class _ReplacementEmitter(Emitter):
    """Emitter of lines inside another function; its names derive from the line that is replaced."""

    @override
    def fresh(self) -> str:
        self.counter += 1
        return f"{self.symbol}.{self.counter}"


def _float_from_half(e: Emitter, x: Reg) -> Reg:
    """Return the bits of the float32 with the value of a float16.

    A denormal float16 is its integer times 2**-24. For other numbers only the exponent's bias
    changes.
    """
    bits = e.convert("zext", e.convert("bitcast", x, "i16"), "i32")
    magnitude = _and(e, bits, 0x7FFF)
    moved = _with(e, "add", _with(e, "shl", magnitude, 13), _BIAS)
    tiny = e.convert("sitofp", magnitude, "float")
    tiny = e.convert("bitcast", e.binary("fmul", tiny, e.constant(2**-24, tiny.type)), "i32")
    finite = e.select(_is(e, "ult", magnitude, 0x400), tiny, moved)
    infinite = _with(e, "add", moved, _BIAS)
    is_nan = _is(e, "ugt", magnitude, 0x7C00)
    special = e.select(is_nan, _with(e, "or", infinite, _QUIET), infinite)
    result = e.select(_is(e, "ult", magnitude, 0x7C00), finite, special)
    return e.binary("or", result, _with(e, "shl", _and(e, bits, 0x8000), 16))


def _half_from_float(e: Emitter, x: Reg) -> Reg:
    """Return the bits of the float16 nearest to a float32.

    Values below the normal float16 numbers are rounded by adding 0.5, whose last place is 2**-24.
    """
    bits = e.convert("bitcast", x, "i32")
    magnitude = _and(e, bits, 0x7FFFFFFF)
    moved = _to_even(e, _with(e, "sub", magnitude, _BIAS), 13)
    moved = _with(e, "lshr", moved, 13)
    small = e.convert("bitcast", magnitude, "float")
    small = e.convert("bitcast", e.binary("fadd", small, e.constant(0.5, small.type)), "i32")
    small = _with(e, "sub", small, 0x3F000000)
    finite = e.select(_is(e, "ult", magnitude, _BIAS + (1 << 23)), small, moved)
    nan = _and(e, _with(e, "lshr", magnitude, 13), 0x3FF)
    nan = _with(e, "or", nan, 0x7E00)
    infinite = e.constant(0x7C00, bits.type)
    special = e.select(_is(e, "ugt", magnitude, _INFINITY), nan, infinite)
    result = e.select(_is(e, "ult", magnitude, 0x47800000), finite, special)  # 65,536
    sign = _and(e, _with(e, "lshr", bits, 16), 0x8000)
    return e.convert("trunc", e.binary("or", result, sign), "i16")


def _float_from_bfloat(e: Emitter, x: Reg) -> Reg:
    """Return the bits of the float32 with the value of a bfloat16, which is its upper half."""
    return _with(e, "shl", e.convert("zext", e.convert("bitcast", x, "i16"), "i32"), 16)


def _bfloat_from_float(e: Emitter, x: Reg) -> Reg:
    """Return the bits of the bfloat16 nearest to a float32."""
    bits = e.convert("bitcast", x, "i32")
    nan = _with(e, "or", bits, _QUIET)
    is_nan = _is(e, "ugt", _and(e, bits, 0x7FFFFFFF), _INFINITY)
    result = e.select(is_nan, nan, _to_even(e, bits, 16))
    return e.convert("trunc", _with(e, "lshr", result, 16), "i16")


def _to_even(e: Emitter, bits: Reg, dropped: int) -> Reg:
    """Add the value that makes dropping the last bits round to nearest, ties to even."""
    odd = _and(e, _with(e, "lshr", bits, dropped), 1)
    return e.binary("add", _with(e, "add", bits, (1 << (dropped - 1)) - 1), odd)


def _and(e: Emitter, bits: Reg, mask: int) -> Reg:
    """Return the bits that a mask selects."""
    return _with(e, "and", bits, mask)


def _is(e: Emitter, predicate: str, bits: Reg, value: int) -> Reg:
    """Compare with a constant; the result is an i1, or a vector of i1."""
    return e.compare_integers(predicate, bits, e.constant(value, bits.type))


def _with(e: Emitter, op: str, bits: Reg, value: int) -> Reg:
    """Apply ``op`` to a register and a constant."""
    return e.binary(op, bits, e.constant(value, bits.type))


_LOWERINGS: Final = {
    ("half", "float"): _float_from_half,
    ("float", "half"): _half_from_float,
    ("bfloat", "float"): _float_from_bfloat,
    ("float", "bfloat"): _bfloat_from_float,
}
"""Integer code of each conversion, by source and result type."""
