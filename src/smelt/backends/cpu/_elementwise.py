"""Elementwise ops on registers, for elementwise kernels and for the epilogues of all families.

A register holds one scalar or one vector of any length. Booleans are i1 in registers and a byte
that is 0 or 1 in memory. float16 and bfloat16 are computed in float32. In a kernel's spec an op is
``(name, attributes)`` (`op_as_json`), so that specs stay data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends._fused_programs import attributes_in
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import (
    LLVM_TYPES,
    Reg,
    element_type,
    lane_count,
    type_suffix,
    vector_type,
)
from smelt.backends.cpu._quantization import QUANTIZED, dequantized, quantized, round_to_quantized
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter
    from smelt.engine import Json
    from smelt.ir import Op

ABSENT: Final = Reg("", "")
"""Stands for an absent optional argument, such as a bound of Clip."""

FLOAT_KINDS: Final = frozenset({"float", "double"})
"""LLVM types in which floating-point ops are computed."""


@dataclass(frozen=True, slots=True)
class _EmittedOp:
    """One op that is being emitted."""

    e: Emitter
    attributes: Mapping[str, Any]
    args: Sequence[Reg]
    dtypes: Sequence[DType]
    """Element types of the arguments, which determine signedness; registers do not."""

    @property
    def x(self) -> Reg:
        return self.args[0]

    @property
    def y(self) -> Reg:
        return self.args[1]

    @property
    def is_float(self) -> bool:
        return element_type(self.x.type) in FLOAT_KINDS

    @property
    def is_unsigned(self) -> bool:
        return self.dtypes[0].value.startswith("u")

    @property
    def zero(self) -> Reg:
        return self.constant(0)

    def constant(self, value: float) -> Reg:
        """Return a literal of the first argument's type."""
        return self.e.constant(value, self.x.type)

    def attribute(self, name: str) -> Reg:
        """Return an attribute as a literal of the first argument's type."""
        return self.constant(_number(self.attributes[name]))

    def scaled(self, name: str) -> Reg:
        """Return the first argument multiplied by an attribute."""
        return self.e.binary("fmul", self.x, self.attribute(name))

    def where(self, predicate: str, yes: Reg, no: Reg) -> Reg:
        """Return ``x predicate 0 ? yes : no``."""
        return self.e.select(self.compare(predicate, self.x, self.zero), yes, no)

    def compare(self, predicate: str, a: Reg, b: Reg) -> Reg:
        """Compare by a floating-point predicate, which is translated for integers."""
        if element_type(a.type) in FLOAT_KINDS:
            return self.e.compare_float(predicate, a, b)
        sign = "u" if self.is_unsigned else "s"
        name = {"oeq": "eq", "une": "ne"}.get(predicate, sign + predicate[1:])
        return self.e.compare_integers(name, a, b)

    def arithmetic(self, name: str) -> Reg:
        """Return all arguments folded with add, sub or mul."""
        op = f"f{name}" if self.is_float else name
        result = self.x
        for other in self.args[1:]:
            result = self.e.binary(op, result, other)
        return result


def unsupported_op_reason(op: Op, dtypes: Sequence[DType]) -> str | None:
    """Return why `emit_op` cannot compute an op on arguments of these types, or None if it can."""
    if op.name not in EMITTERS:
        return f"the kernel generator does not support the op {op.name}"
    allowed = _ALLOWED.get(op.name, _FLOATS)
    unsupported = [d.value for d in dtypes if d not in allowed]
    if unsupported:
        return f"{op.name} of {' and '.join(dict.fromkeys(unsupported))} is not supported"
    if op.name == "cast" and DType(cast("Any", op).to) not in _ANY:
        return f"a cast to {DType(cast('Any', op).to).value} is not supported"
    if op.name == "mod" and dtypes[0].is_float:
        return "mod of floating-point types is not supported"
    return None


def emit_op(
    e: Emitter, op: Json, args: Sequence[Reg], dtypes: Sequence[DType] | None = None
) -> Reg:
    """Emit one elementwise op, given as `op_as_json` writes it, and return the result's register.

    ``dtypes`` are the element types of the arguments; without them, integers are signed.
    """
    name, attributes = cast("tuple[str, tuple[tuple[str, Json], ...]]", op)
    if dtypes is None:
        dtypes = [_DTYPES[element_type(a.type)] for a in args if a is not ABSENT]
    call = _EmittedOp(e, attributes_in(attributes), args, dtypes)
    return EMITTERS[name](call)


# ---- registers and memory


def register_type(dtype: DType, lanes: int) -> str:
    """Return the type of a register that holds ``lanes`` elements of ``dtype``."""
    return vector_type(_REGISTERS[dtype], lanes)


def to_compute_type(e: Emitter, stored: Reg, dtype: DType) -> Reg:
    """Convert a loaded value to the type in which it is computed."""
    if dtype is DType.BOOL:
        return e.compare_integers("ne", stored, e.constant(0, stored.type))
    if dtype in {DType.FLOAT16, DType.BFLOAT16}:
        return e.convert("fpext", stored, "float")
    return stored


def to_storage_type(e: Emitter, value: Reg, dtype: DType) -> Reg:
    """Convert a computed value to the type of its elements in memory."""
    if dtype is DType.BOOL:
        return e.convert("zext", value, "i8")
    if dtype in {DType.FLOAT16, DType.BFLOAT16}:
        return e.convert("fptrunc", value, "half" if dtype is DType.FLOAT16 else "bfloat")
    return value


_REGISTERS: Final = {
    **LLVM_TYPES,
    DType.FLOAT16: "float",
    DType.BFLOAT16: "float",
    DType.BOOL: "i1",
}
"""LLVM type in which elements are computed."""
_DTYPES: Final = {
    "double": DType.FLOAT64,
    "float": DType.FLOAT32,
    "i64": DType.INT64,
    "i32": DType.INT32,
    "i16": DType.INT16,
    "i8": DType.INT8,
    "i1": DType.BOOL,
}
"""Element type assumed for a register if the caller does not give it."""


# ---- the ops


def _unary(function: Callable[[Emitter, Reg], Reg]) -> Callable[[_EmittedOp], Reg]:
    return lambda c: function(c.e, c.x)


def _comparison(predicate: str) -> Callable[[_EmittedOp], Reg]:
    return lambda c: c.compare(predicate, c.x, c.y)


def _bitwise(op: str) -> Callable[[_EmittedOp], Reg]:
    return lambda c: c.e.binary(op, c.x, c.y)


def _absolute(c: _EmittedOp) -> Reg:
    if c.is_float:
        return m.absolute(c.e, c.x)
    if c.is_unsigned:
        return c.x
    return c.where("olt", c.e.binary("sub", c.zero, c.x), c.x)


def _invert(c: _EmittedOp) -> Reg:
    return c.e.binary("xor", c.x, c.constant(1 if element_type(c.x.type) == "i1" else -1))


def _prelu(c: _EmittedOp) -> Reg:
    op = "fmul" if c.is_float else "mul"
    return c.where("olt", c.e.binary(op, c.x, c.y), c.x)


def _elu(c: _EmittedOp) -> Reg:
    grown = m.expm1(c.e, m.clamp_max(c.e, c.x, 0.0))
    return c.where("ogt", c.x, c.e.binary("fmul", grown, c.attribute("alpha")))


def _celu(c: _EmittedOp) -> Reg:
    scaled = c.e.binary("fdiv", c.x, c.attribute("alpha"))
    below = c.e.binary("fmul", m.expm1(c.e, scaled), c.attribute("alpha"))
    low = m.clamp_max(c.e, below, 0.0)
    return c.e.binary("fadd", m.clamp_min(c.e, c.x, 0.0), low)


def _hard_sigmoid(c: _EmittedOp) -> Reg:
    line = c.e.binary("fadd", c.scaled("alpha"), c.attribute("beta"))
    return m.clamp_max(c.e, m.clamp_min(c.e, line, 0.0), 1.0)


def _hard_swish(c: _EmittedOp) -> Reg:
    line = c.e.binary("fmul", c.x, c.constant(1 / 6))
    line = c.e.binary("fadd", line, c.constant(0.5))
    return c.e.binary("fmul", c.x, m.clamp_max(c.e, m.clamp_min(c.e, line, 0.0), 1.0))


def _number(value: float | str) -> float:
    """Return an attribute as a number; specs hold infinities and NaN as text."""
    return float(value) if isinstance(value, str) else value


def _swish(c: _EmittedOp) -> Reg:
    alpha = _number(c.attributes.get("alpha", 1.0))
    inner = c.x if alpha == 1.0 else c.e.binary("fmul", c.x, c.constant(alpha))
    return c.e.binary("fmul", c.x, m.sigmoid(c.e, inner))


def _gelu(c: _EmittedOp) -> Reg:
    if c.attributes.get("approximate", "none") == "tanh":
        half = c.e.binary("fmul", c.x, c.constant(0.5))
        cube = c.e.binary("fmul", c.e.binary("fmul", c.x, c.x), c.x)
        inner = m.multiply_add(c.e, cube, c.constant(0.044715), c.x)
        inner = c.e.binary("fmul", inner, c.constant(math.sqrt(2 / math.pi)))
        return m.multiply_add(c.e, half, m.tanh(c.e, inner), half)
    return m.gelu(c.e, c.x)


def _softsign(c: _EmittedOp) -> Reg:
    return c.e.binary("fdiv", c.x, c.e.binary("fadd", m.absolute(c.e, c.x), c.constant(1.0)))


def _shrink(c: _EmittedOp) -> Reg:
    limit = float(c.attributes["lambd"])
    bias = c.attribute("bias")
    low = c.e.compare_float("olt", c.x, c.constant(-limit))
    high = c.e.compare_float("ogt", c.x, c.constant(limit))
    above = c.e.select(high, c.e.binary("fsub", c.x, bias), c.zero)
    return c.e.select(low, c.e.binary("fadd", c.x, bias), above)


def _thresholded_relu(c: _EmittedOp) -> Reg:
    return c.e.select(c.e.compare_float("ogt", c.x, c.attribute("alpha")), c.x, c.zero)


def _sign(c: _EmittedOp) -> Reg:
    if c.is_unsigned:
        return c.where("ogt", c.constant(1), c.x)
    below = c.where("olt", c.constant(-1), c.x)
    return c.where("ogt", c.constant(1), below)


def _is_inf(c: _EmittedOp) -> Reg:
    high = c.e.compare_float("oeq", c.x, c.constant(math.inf))
    low = c.e.compare_float("oeq", c.x, c.constant(-math.inf))
    none = c.e.constant(0, high.type)
    first = high if c.attributes["detect_positive"] else none
    return c.e.binary("or", first, low if c.attributes["detect_negative"] else none)


def _divide(c: _EmittedOp) -> Reg:
    return c.e.binary("fdiv", c.x, c.y) if c.is_float else _integer_division(c, "div")


def _modulo(c: _EmittedOp) -> Reg:
    """Emit ONNX Mod: the remainder has the divisor's sign, unless ``fmod`` is set."""
    remainder = _integer_division(c, "rem")
    if c.is_unsigned or c.attributes.get("fmod", 0):
        return remainder
    # The hardware's remainder has the dividend's sign; ONNX wants the divisor's, as Python does.
    is_nonzero = c.compare("une", remainder, c.zero)
    signs_differ = c.compare("olt", c.e.binary("xor", remainder, c.y), c.zero)
    corrected = c.e.binary("add", remainder, c.y)
    return c.e.select(c.e.binary("and", is_nonzero, signs_differ), corrected, remainder)


def _integer_division(c: _EmittedOp, what: str) -> Reg:
    """Return quotient or remainder (``what`` is "div" or "rem"), rounded towards zero.

    Divisors that would trap do not: division by 0 gives 0, and the smallest integer divided by -1
    wraps around.
    """
    e, one = c.e, c.constant(1)
    is_zero = c.compare("oeq", c.y, c.zero)
    if c.is_unsigned:
        safe_divisor = e.select(is_zero, one, c.y)
        return e.select(is_zero, c.zero, e.binary(f"u{what}", c.x, safe_divisor))
    is_minus_one = c.compare("oeq", c.y, c.constant(-1))
    safe_divisor = e.select(e.binary("or", is_zero, is_minus_one), one, c.y)
    result = e.binary(f"s{what}", c.x, safe_divisor)
    negated = e.binary("sub", c.zero, c.x) if what == "div" else c.zero
    return e.select(is_zero, c.zero, e.select(is_minus_one, negated, result))


def _extreme(predicate: str) -> Callable[[_EmittedOp], Reg]:
    def emit(c: _EmittedOp) -> Reg:
        result = c.x
        for other in c.args[1:]:
            if c.is_float:
                pick = m.larger if predicate == "ogt" else m.smaller
                result = pick(c.e, result, other)
            else:
                result = c.e.select(c.compare(predicate, result, other), result, other)
        return result

    return emit


def _mean(c: _EmittedOp) -> Reg:
    return c.e.binary("fdiv", c.arithmetic("add"), c.constant(float(len(c.args))))


def _clip(c: _EmittedOp) -> Reg:
    result = c.x
    for bound, predicate in zip(c.args[1:], ("olt", "ogt"), strict=False):
        if bound is not ABSENT:
            result = c.e.select(c.compare(predicate, result, bound), bound, result)
    return result


def _dequantize(c: _EmittedOp) -> Reg:
    x, scale, zero = (*c.args, ABSENT)[:3]
    real = dequantized(c.e, x, scale, None if zero is ABSENT else zero, c.dtypes[0])
    return _round_half(c.e, real, c.dtypes[1])


def _steps(c: _EmittedOp) -> tuple[Reg, Reg | None, DType]:
    """Return the value divided by the scale, the zero point if present, and the result's type."""
    x, scale, zero = (*c.args, ABSENT)[:3]
    if not c.is_float:
        x = c.e.convert("sitofp", x, "float")
    steps = x if scale is ABSENT else c.e.binary("fdiv", x, scale)
    if zero is ABSENT:
        return steps, None, DType(c.attributes["output_dtype"] or "uint8")
    return steps, zero, c.dtypes[-1]


def cast_register(e: Emitter, x: Reg, source: DType, target: DType) -> Reg:
    """Return the value as another element type.

    Floating-point values beyond an integer's range saturate.
    """
    before, after = element_type(x.type), _REGISTERS[target]
    if target is DType.BOOL:
        if source is DType.BOOL:
            return x
        zero = e.constant(0, x.type)
        if before in FLOAT_KINDS:
            return e.compare_float("une", x, zero)
        return e.compare_integers("ne", x, zero)
    unsigned = source is DType.BOOL or source.value.startswith("u")
    if before in FLOAT_KINDS:
        return _cast_float(e, x, target, after)
    if after in FLOAT_KINDS:
        wide = e.convert("uitofp" if unsigned else "sitofp", x, after)
        return _round_half(e, wide, target)
    bits = int(before[1:]), int(after[1:])
    if bits[0] == bits[1]:
        return x
    widen = "zext" if unsigned else "sext"
    return e.convert("trunc" if bits[1] < bits[0] else widen, x, after)


def _cast_float(e: Emitter, x: Reg, target: DType, after: str) -> Reg:
    """Return a floating-point value as another element type."""
    before = element_type(x.type)
    if after in FLOAT_KINDS:
        if before != after:
            x = e.convert("fpext" if after == "double" else "fptrunc", x, after)
        return _round_half(e, x, target)
    kind = vector_type(after, lane_count(x.type))
    name = "fptoui" if target.value.startswith("u") else "fptosi"
    return e.call(kind, f"llvm.{name}.sat.{type_suffix(kind)}.{type_suffix(x.type)}", x)


def _round_half(e: Emitter, x: Reg, target: DType) -> Reg:
    """Round a float32 to float16 or bfloat16 precision if that is the target type."""
    if target in {DType.FLOAT16, DType.BFLOAT16}:
        return to_compute_type(e, to_storage_type(e, x, target), target)
    return x


_FUNCTIONS: Final = (
    m.acos, m.acosh, m.asin, m.asinh, m.atan, m.atanh, m.ceil, m.cos, m.cosh, m.erf, m.exp,
    m.floor, m.log, m.sigmoid, m.sin, m.sinh, m.softplus, m.tan, m.tanh,
)  # fmt: skip
"""Functions of one value that are ops of the same name."""
EMITTERS: Final[dict[str, Callable[[_EmittedOp], Reg]]] = {
    **{function.__name__: _unary(function) for function in _FUNCTIONS},
    "abs": _absolute,
    "add": lambda c: c.arithmetic("add"),
    # Gemm's addend; not an op of the graph
    "add_scaled": lambda c: m.multiply_add(c.e, c.y, c.attribute("beta"), c.x),
    "and": _bitwise("and"),
    "bitwise_and": _bitwise("and"),
    "bitwise_not": _invert,
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "cast": lambda c: cast_register(c.e, c.x, c.dtypes[0], DType(c.attributes["to"])),
    "celu": _celu,
    "clip": _clip,
    "dequantize_linear": _dequantize,
    "div": _divide,
    "elu": _elu,
    "equal": _comparison("oeq"),
    "gelu": _gelu,
    "greater": _comparison("ogt"),
    "greater_or_equal": _comparison("oge"),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "identity": lambda c: c.x,
    "is_inf": _is_inf,
    "is_nan": lambda c: c.e.compare_float("uno", c.x, c.x),
    "leaky_relu": lambda c: c.where("olt", c.scaled("alpha"), c.x),
    "less": _comparison("olt"),
    "less_or_equal": _comparison("ole"),
    "max": _extreme("ogt"),
    "mean": _mean,
    "min": _extreme("olt"),
    "mish": lambda c: c.e.binary("fmul", c.x, m.tanh(c.e, m.softplus(c.e, c.x))),
    "mod": _modulo,
    "mul": lambda c: c.arithmetic("mul"),
    "neg": lambda c: m.negative(c.e, c.x) if c.is_float else c.e.binary("sub", c.zero, c.x),
    "not": _invert,
    "or": _bitwise("or"),
    "pow": lambda c: m.power(c.e, c.x, c.y),
    "prelu": _prelu,
    "quantize_linear": lambda c: quantized(c.e, *_steps(c)),
    "reciprocal": lambda c: c.e.binary("fdiv", c.constant(1.0), c.x),
    "relu": lambda c: c.where("olt", c.zero, c.x),
    "round": _unary(m.round_even),
    "selu": lambda c: c.e.binary("fmul", _elu(c), c.attribute("gamma")),
    "shrink": _shrink,
    "sign": _sign,
    "softsign": _softsign,
    "sqrt": lambda c: c.e.unary_intrinsic("sqrt", c.x),
    "sub": lambda c: c.arithmetic("sub"),
    "sum": lambda c: c.arithmetic("add"),
    "swish": _swish,
    "thresholded_relu": _thresholded_relu,
    "where": lambda c: c.e.select(*c.args),
    # fake quantization (`plan_epilogue`)
    "quantize_steps": lambda c: round_to_quantized(c.e, *_steps(c)),
    "xor": _bitwise("xor"),
}
"""Function that emits each supported elementwise op, by name."""

_ANY: Final = frozenset(_REGISTERS)
_FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_NUMBERS: Final = _ANY - {DType.BOOL}
_INTEGERS: Final = frozenset(d for d in DType if d.is_integer)
_WIDE_FLOATS: Final = _FLOATS | {DType.FLOAT64}
_ALLOWED: Final[dict[str, frozenset[DType]]] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "abs", "neg", "sign", "relu", "prelu", "max", "min",
         "clip", "greater", "greater_or_equal", "less", "less_or_equal", "sum", "mod"),
        _NUMBERS,
    ),
    "quantize_linear": _FLOATS | QUANTIZED,
    "dequantize_linear": _FLOATS | QUANTIZED,
    **dict.fromkeys(("equal", "where", "identity", "cast"), _ANY),
    **dict.fromkeys(("and", "or", "xor", "not"), frozenset({DType.BOOL})),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), _INTEGERS),
    **dict.fromkeys(
        ("sqrt", "floor", "ceil", "round", "is_nan", "is_inf", "leaky_relu", "mean",
         "reciprocal", "hard_sigmoid", "hard_swish", "softsign", "shrink", "thresholded_relu"),
        _WIDE_FLOATS,
    ),
}  # fmt: skip
"""Supported element types of the arguments of each op; other ops support `_FLOATS`."""
