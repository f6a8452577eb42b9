"""Elementwise ops as Triton expressions, used by elementwise kernels and by epilogues.

Values of float16 and bfloat16 are computed in float32 and rounded when they are stored. Expressions
use only functions that Triton itself has on every GPU, never an external math library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends._fused_programs import ABSENT_INPUT, attributes_in
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.ir import Op

_HALVES: Final = frozenset({DType.FLOAT16, DType.BFLOAT16})
"""Float types of 16 bits."""
_FLOATS: Final = _HALVES | {DType.FLOAT32, DType.FLOAT64}
"""Float types."""


@dataclass(frozen=True, slots=True)
class _EmittedOp:
    """One op whose expression is being generated."""

    attributes: Mapping[str, Any]
    args: Sequence[str]
    """Names of the arguments' variables; empty for an absent argument."""
    dtypes: Sequence[DType]
    let: Callable[[str], str]
    """Writes a statement that assigns an expression to a new variable, and returns its name."""

    @property
    def x(self) -> str:
        """First argument."""
        return self.args[0]

    @property
    def y(self) -> str:
        """Second argument."""
        return self.args[1]

    @property
    def is_float(self) -> bool:
        """Whether the first argument is a float."""
        return self.dtypes[0] in _FLOATS

    @property
    def is_unsigned(self) -> bool:
        """Whether the first argument is an unsigned integer."""
        return self.dtypes[0].value.startswith("u")

    def number(self, name: str) -> str:
        """Return an attribute as a literal."""
        return literal(float(self.attributes[name]))


def literal(value: float) -> str:
    """Return a floating-point number as an expression."""
    if math.isfinite(value):
        return repr(value)
    return "float('nan')" if math.isnan(value) else f"float('{'-' if value < 0 else ''}inf')"


def _fold(sign: str) -> Callable[[_EmittedOp], str]:
    """Return a generator that joins all arguments by an operator."""
    return lambda c: f" {sign} ".join(f"({a})" for a in c.args)


def _unary(form: str) -> Callable[[_EmittedOp], str]:
    """Return a generator that inserts the argument into a format."""
    return lambda c: form.format(x=c.x)


def _nan_argument(c: _EmittedOp) -> str:
    """Return the keyword by which a minimum or maximum of floats propagates NaN."""
    return ", propagate_nan=tl.PropagateNan.ALL" if c.is_float else ""


def _extreme(function: str) -> Callable[[_EmittedOp], str]:
    """Return a generator of the minimum or maximum of all arguments."""

    def write(c: _EmittedOp) -> str:
        text = c.x
        for operand in c.args[1:]:
            text = f"tl.{function}({text}, {operand}{_nan_argument(c)})"
        return text

    return write


def sigmoid(x: str) -> str:
    """Return the logistic function of an expression, accurate for any finite argument."""
    return f"(1.0 / (1.0 + tl.exp(-({x}))))"


def tanh(x: str) -> str:
    """Return the hyperbolic tangent of an expression."""
    return f"(2.0 / (1.0 + tl.exp(-2.0 * ({x}))) - 1.0)"


def _log1p(c: _EmittedOp, text: str) -> str:
    """Return log(1 + x) of a finite expression x."""
    x = c.let(text)
    one = c.let(f"1.0 + {x}")  # the quotient below corrects its rounding
    return f"tl.where({one} == 1.0, {x}, tl.log({one}) * ({x} / ({one} - 1.0)))"


def _softplus(c: _EmittedOp) -> str:
    """Return log(1 + exp(x)) in a form that does not overflow."""
    return f"(tl.maximum({c.x}, 0.0) + {_log1p(c, f'tl.exp(-tl.abs({c.x}))')})"


def _clip(c: _EmittedOp) -> str:
    """Return the argument limited by the bounds that are present."""
    text = c.x
    for bound, function in zip(c.args[1:], ("maximum", "minimum"), strict=False):
        if bound:
            text = f"tl.{function}({text}, {bound}{_nan_argument(c)})"
    return text


def _hard_sigmoid(c: _EmittedOp) -> str:
    """Return alpha * x + beta limited to [0, 1]."""
    return _clamp(c, f"{c.x} * {c.number('alpha')} + {c.number('beta')}", "0.0", "1.0")


def _gelu(c: _EmittedOp) -> str:
    """Return GELU, exact by erf or approximated by tanh."""
    if c.attributes.get("approximate", "none") == "tanh":
        inner = f"0.7978845608028654 * ({c.x} + 0.044715 * {c.x} * {c.x} * {c.x})"
        return f"0.5 * {c.x} * (1.0 + {tanh(inner)})"
    return f"0.5 * {c.x} * (1.0 + tl.erf({c.x} * 0.7071067811865476))"


def _elu(c: _EmittedOp) -> str:
    return f"tl.where({c.x} > 0.0, {c.x}, {c.number('alpha')} * (tl.exp({c.x}) - 1.0))"


def _celu(c: _EmittedOp) -> str:
    """Return CELU as a sum of its positive and negative parts."""
    nan, alpha = _nan_argument(c), c.number("alpha")
    below = f"{alpha} * (tl.exp({c.x} / {alpha}) - 1.0)"
    return f"tl.maximum({c.x}, 0.0{nan}) + tl.minimum({below}, 0.0{nan})"


def _shrink(c: _EmittedOp) -> str:
    bias, limit = c.number("bias"), c.number("lambd")
    above = f"tl.where({c.x} > {limit}, {c.x} - {bias}, 0.0)"
    return f"tl.where({c.x} < -({limit}), {c.x} + {bias}, {above})"


def _is_inf(c: _EmittedOp) -> str:
    """Return whether the argument is one of the infinities to detect."""
    limits = {"detect_negative": "float('-inf')", "detect_positive": "float('inf')"}
    conditions = [f"({c.x} == {limit})" for key, limit in limits.items() if c.attributes[key]]
    return " | ".join(conditions) or f"{c.x} < {c.x}"


def _quotient(c: _EmittedOp, x: str, y: str) -> str:
    """Return x / y, correctly rounded.

    Triton's own division flushes float32 results to 0 if y exceeds 2**126.
    """
    return f"{x} / ({y})" if c.dtypes[0] is DType.FLOAT64 else f"tl.div_rn({x}, {y})"


def _safe_divisor(c: _EmittedOp) -> str:
    """Return the divisor, or 1 in place of 0 and -1, which integer division cannot handle."""
    bad = f"({c.y} == 0)" if c.is_unsigned else f"(({c.y} == 0) | ({c.y} == -1))"
    return c.let(f"tl.where({bad}, 1, {c.y})")


def _divide(c: _EmittedOp) -> str:
    """Return the quotient; integer division by 0 gives 0."""
    if c.is_float:
        return _quotient(c, c.x, c.y)
    quotient = f"{c.x} // {_safe_divisor(c)}"
    signed = quotient if c.is_unsigned else f"tl.where({c.y} == -1, -{c.x}, {quotient})"
    return f"tl.where({c.y} == 0, 0, {signed})"


def _modulo(c: _EmittedOp) -> str:
    """Return the remainder, with the sign of the divisor unless ``fmod`` is set."""
    rest = c.let(f"{c.x} % {_safe_divisor(c)}")
    if c.is_unsigned or c.attributes["fmod"]:
        return rest
    return f"tl.where(({rest} != 0) & (({rest} ^ {c.y}) < 0), {rest} + {c.y}, {rest})"


def _shift(c: _EmittedOp) -> str:
    """Return the shifted argument; shifts by its width or more give 0."""
    sign, width = "<<" if c.attributes["direction"] == "LEFT" else ">>", c.dtypes[0].size_bytes * 8
    return f"tl.where({c.y} < {width}, {c.x} {sign} {c.y}, 0)"


def _root(c: _EmittedOp, x: str) -> str:
    """Return the correctly rounded square root."""
    return f"tl.sqrt{'' if c.dtypes[0] is DType.FLOAT64 else '_rn'}({x})"


def _round(c: _EmittedOp) -> str:
    """Return the argument rounded to the nearest even integer.

    Adding 1.5 * 2**23 (float64: 1.5 * 2**52) rounds it; subtracting that restores its magnitude.
    """
    is_double = c.dtypes[0] is DType.FLOAT64
    big, limit = (1.5 * 2.0**52, 2.0**51) if is_double else (1.5 * 2.0**23, 2.0**22)
    return f"tl.where(tl.abs({c.x}) < {limit}, ({c.x} + {big}) - {big}, {c.x})"


def _power(c: _EmittedOp) -> str:
    """Return x**y by logarithms, with C's results for 1, infinities and signed zeros."""
    x, y = c.args
    magnitude = f"tl.where(tl.abs({x}) == 1.0, 1.0, tl.exp2({y} * tl.log2(tl.abs({x}))))"
    is_integer = f"({y} == tl.floor({y}))"
    is_odd = f"({is_integer} & (tl.abs({y} - 2.0 * tl.floor({y} * 0.5)) == 1.0))"
    is_negative = f"(({x} < 0.0) | (1.0 / {x} == float('-inf')))"
    real = f"tl.where({is_integer}, 1.0, float('nan'))"
    even = f"tl.where(({x} < 0.0) & ({x} > float('-inf')), {real}, 1.0)"
    sign = f"tl.where({is_negative}, tl.where({is_odd}, -1.0, {even}), 1.0)"
    return f"tl.where({y} == 0.0, 1.0, {magnitude} * {sign})"


def _sign(c: _EmittedOp) -> str:
    """Return the sign; zeros and NaN propagate for floats."""
    if c.is_unsigned:
        return f"tl.where({c.x} > 0, 1, {c.x})"
    return f"tl.where({c.x} > 0, 1, tl.where({c.x} < 0, -1, {c.x} * 0))"


def _cast(c: _EmittedOp) -> str:
    """Return the argument converted to a type; 16-bit floats are rounded and widened again."""
    target = DType(c.attributes["to"])
    if target is DType.BOOL:
        return f"({c.x} != 0)"
    if c.is_float and target.is_integer:
        return _truncate(c, target)
    rounded = f"({c.x}).to({LANGUAGE_TYPES[target]})"
    return f"{rounded}.to(tl.float32)" if target in _HALVES else rounded


def _truncate(c: _EmittedOp, target: DType) -> str:
    """Return a float truncated to an integer; saturated out of range, and 0 for NaN."""
    limits, kind = np.iinfo(target.numpy), LANGUAGE_TYPES[target]
    # The largest integer may not be representable; the power of two above it is.
    low, high = float(limits.min), float(limits.max + 1)
    inside = c.let(f"({c.x} >= {low}) & ({c.x} < {high})")
    truncated = c.let(f"tl.where({inside}, {c.x}, 0.0).to({kind})")
    limited = f"tl.where({c.x} < {low}, {limits.min}, {truncated})"
    return f"tl.where({c.x} >= {high}, {limits.max}, {limited}).to({kind})"


def _fill(c: _EmittedOp) -> str:
    """Return a constant, as padding needs."""
    value = c.attributes["value"]
    if isinstance(value, float):
        return f"tl.full([], {literal(value)}, tl.float32)"
    return f"tl.full([], {int(value)}, tl.int64)"


def _arctan(c: _EmittedOp, tangent: str) -> str:
    """Return the inverse tangent by a series for an eighth of the angle.

    The tangent of half an angle follows from the tangent t of the angle: t / (1 + sqrt(1 + t**2)).
    """
    # Larger tangents give a right angle in float32.
    t = c.let(_clamp(c, tangent, "-1e9", "1e9"))
    for _ in range(3):
        t = c.let(f"{t} / (1.0 + {_root(c, f'1.0 + {t} * {t}')})")
    square, series = c.let(f"{t} * {t}"), literal(1 / 9)
    for power in (7, 5, 3, 1):
        series = f"({literal(1 / power)} - {square} * {series})"
    return f"8.0 * {t} * {series}"


def _clamp(c: _EmittedOp, x: str, low: str, high: str) -> str:
    """Return an expression limited to [low, high]; NaN propagates."""
    nan = _nan_argument(c)
    return f"tl.minimum(tl.maximum({x}, {low}{nan}), {high}{nan})"


def _asin(c: _EmittedOp) -> str:
    """Return the inverse sine by its tangent."""
    return _arctan(c, _quotient(c, c.x, _root(c, f"(1.0 - {c.x}) * (1.0 + {c.x})")))


def _acos(c: _EmittedOp) -> str:
    """Return the inverse cosine by the tangent of half the angle."""
    square = _quotient(c, f"1.0 - {c.x}", f"1.0 + {c.x}")
    return f"2.0 * ({_arctan(c, _root(c, square))})"


def _half_powers(c: _EmittedOp) -> tuple[str, str]:
    """Return exp(x) / 2 and exp(-x) / 2, which do not overflow before the result does."""
    up, down = c.let(f"tl.exp(0.5 * {c.x})"), c.let(f"tl.exp(-0.5 * {c.x})")
    return f"0.5 * {up} * {up}", f"0.5 * {down} * {down}"


def _sinh(c: _EmittedOp) -> str:
    """Return sinh, by its series where the difference of exponentials would cancel."""
    square, series = c.let(f"{c.x} * {c.x}"), "1.0"
    for factor in (72, 42, 20, 6):
        series = f"(1.0 + {square} * {literal(1 / factor)} * {series})"
    up, down = _half_powers(c)
    return f"tl.where(tl.abs({c.x}) < 1.0, {c.x} * {series}, {up} - {down})"


def _asinh(c: _EmittedOp) -> str:
    """Return the inverse hyperbolic sine, computed for the absolute value."""
    x = c.let(f"tl.abs({c.x})")
    rest = f"{x} + {x} * {x} / (1.0 + {_root(c, f'1.0 + {x} * {x}')})"
    magnitude = c.let(_log_of_sum(c, x, rest))
    return f"tl.where({c.x} < 0.0, -{magnitude}, {magnitude})"


def _acosh(c: _EmittedOp) -> str:
    """Return the inverse hyperbolic cosine."""
    more = c.let(f"{c.x} - 1.0")  # NaN below 1, because of its root
    return _log_of_sum(c, c.x, f"{more} + {_root(c, more)} * {_root(c, f'{more} + 2.0')}")


def _log_of_sum(c: _EmittedOp, x: str, rest: str) -> str:
    """Return log(1 + ``rest``), or log(2 * x) for large x, whose square may overflow."""
    return f"tl.where({x} > 1e9, tl.log({x}) + 0.6931471805599453, {_log1p(c, rest)})"


def _atanh(c: _EmittedOp) -> str:
    """Return the inverse hyperbolic tangent."""
    return f"0.5 * ({_log1p(c, c.x)} - {_log1p(c, f'-{c.x}')})"


EXPRESSIONS: Final[dict[str, Callable[[_EmittedOp], str]]] = {
    "abs": _unary("tl.abs({x})"),
    "acos": _acos,
    "acosh": _acosh,
    "add": _fold("+"),
    "add_scaled": lambda c: f"{c.x} + {c.number('beta')} * {c.y}",
    "and": _fold("&"),
    "asin": _asin,
    "asinh": _asinh,
    "atan": lambda c: _arctan(c, c.x),
    "atanh": _atanh,
    "bit_shift": _shift,
    "cast": _cast,
    "ceil": _unary("tl.ceil({x})"),
    "celu": _celu,
    "clip": _clip,
    "cos": _unary("tl.cos({x})"),
    "cosh": lambda c: " + ".join(_half_powers(c)),
    "div": _divide,
    "elu": _elu,
    "equal": lambda c: f"{c.x} == {c.y}",
    "erf": _unary("tl.erf({x})"),
    "exp": _unary("tl.exp({x})"),
    "fill": _fill,
    "floor": _unary("tl.floor({x})"),
    "gelu": _gelu,
    "greater": lambda c: f"{c.x} > {c.y}",
    "greater_or_equal": lambda c: f"{c.x} >= {c.y}",
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _unary("{x} * tl.minimum(tl.maximum({x} * (1.0 / 6.0) + 0.5, 0.0), 1.0)"),
    "identity": _unary("{x}"),
    "is_inf": _is_inf,
    "is_nan": _unary("{x} != {x}"),
    "leaky_relu": lambda c: f"tl.where({c.x} < 0.0, {c.x} * {c.number('alpha')}, {c.x})",
    "less": lambda c: f"{c.x} < {c.y}",
    "less_or_equal": lambda c: f"{c.x} <= {c.y}",
    "log": _unary("tl.log({x})"),
    "max": _extreme("maximum"),
    "mean": lambda c: f"({_fold('+')(c)}) / {float(len(c.args))}",
    "min": _extreme("minimum"),
    "mish": lambda c: f"{c.x} * {tanh(_softplus(c))}",
    "mod": _modulo,
    "mul": _fold("*"),
    "neg": _unary("-({x})"),
    "not": _unary("({x}) == 0"),
    "or": _fold("|"),
    "pow": _power,
    "prelu": lambda c: f"tl.where({c.x} < 0, {c.x} * {c.y}, {c.x})",
    "reciprocal": lambda c: _quotient(c, "1.0", c.x),
    "relu": lambda c: f"tl.maximum({c.x}, 0{_nan_argument(c)})",
    "round": _round,
    "selu": lambda c: f"{c.number('gamma')} * {_elu(c)}",
    "shrink": _shrink,
    "sigmoid": lambda c: sigmoid(c.x),
    "sign": _sign,
    "sin": _unary("tl.sin({x})"),
    "sinh": _sinh,
    "softplus": _softplus,
    "softsign": lambda c: _quotient(c, c.x, f"1.0 + tl.abs({c.x})"),
    "sqrt": lambda c: _root(c, c.x),
    "sub": _fold("-"),
    "sum": _fold("+"),
    "swish": lambda c: f"{c.x} * {sigmoid(c.number('alpha') + ' * ' + c.x)}",
    "tan": _unary("tl.sin({x}) / tl.cos({x})"),
    "tanh": lambda c: tanh(c.x),
    "thresholded_relu": lambda c: f"tl.where({c.x} > {c.number('alpha')}, {c.x}, 0.0)",
    "where": lambda c: f"tl.where({c.x}, {c.args[1]}, {c.args[2]})",
    "xor": _fold("^"),
}
"""Generator of the expression of each op."""

_NUMBERS: Final = frozenset(d for d in DType if d is not DType.BOOL)
"""All types but bool."""
_ANY: Final = frozenset(DType)
"""All types."""
_ALLOWED: Final[dict[str, frozenset[DType]]] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "div", "abs", "neg", "max", "min", "clip", "greater", "sum", "relu",
         "greater_or_equal", "less", "less_or_equal", "sign", "prelu"),
        _NUMBERS,
    ),
    **dict.fromkeys(("equal", "where", "identity", "cast"), _ANY),
    **dict.fromkeys(("and", "or", "xor", "not"), frozenset({DType.BOOL})),
    **dict.fromkeys(("acos", "asin", "atan", "sinh"), _FLOATS - {DType.FLOAT64}),
    **dict.fromkeys(("bit_shift", "mod"), _NUMBERS - _FLOATS),
}  # fmt: skip
"""Types of the arguments of ops that do not take exactly the float types."""


def unsupported_op_reason(op: Op, dtypes: Sequence[DType]) -> str | None:
    """Return why there is no expression for an op on these types, or None."""
    if op.name not in EXPRESSIONS:
        return f"the kernel generator does not support the op {op.name}"
    bad = [d.value for d in dtypes if d not in _ALLOWED.get(op.name, _FLOATS)]
    kinds = " and ".join(dict.fromkeys(bad))
    return f"{op.name} of {kinds} is not supported" if bad else None


def write_stages(
    line: Callable[[str], None], stages: Any, read: Callable[[int], str], values: list[str]
) -> str:
    """Write a program, one or a few statements per op; return the variable of its last result.

    Args:
        line: writes a statement.
        stages: (op, arguments, dtypes of the arguments) of each op, as a spec holds them.
        read: returns the variable of an input.
        values: variables of the results so far (of the root, in an epilogue); extended.
    """
    names = (f"v{number}" for number in count())

    def let(text: str) -> str:
        name = next(names)
        line(f"{name} = {text}")
        return name

    def variable(argument: int) -> str:
        if argument < 0:
            return values[-argument - 1]
        return "" if argument == ABSENT_INPUT else read(argument)

    for (kind, attributes), arguments, kinds in stages:
        args = [variable(argument) for argument in arguments]
        call = _EmittedOp(attributes_in(attributes), args, [DType(k) for k in kinds], let)
        values.append(let(EXPRESSIONS[kind](call)))
    return values[-1]
