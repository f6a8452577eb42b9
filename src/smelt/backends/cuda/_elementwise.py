"""Elementwise ops as Triton expressions, and the epilogues that every family ends with.

Values of float16 and bfloat16 are computed in float32 and rounded when they are stored. An
expression only uses what Triton itself offers on every GPU, no library's functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends._fusion import ABSENT_INPUT
from smelt.backends.cuda._source import LANGUAGE_TYPES
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.engine import Json
    from smelt.ir import Op

_HALVES: Final = frozenset({DType.FLOAT16, DType.BFLOAT16})
_FLOATS: Final = _HALVES | {DType.FLOAT32, DType.FLOAT64}


@dataclass(frozen=True, slots=True)
class _Call:
    """One op being written."""

    attributes: Mapping[str, Any]
    args: Sequence[str]
    """Names of variables; empty for an absent argument."""
    dtypes: Sequence[DType]

    @property
    def x(self) -> str:
        return self.args[0]

    @property
    def y(self) -> str:
        return self.args[1]

    @property
    def is_float(self) -> bool:
        return self.dtypes[0] in _FLOATS

    def number(self, name: str) -> str:
        """An attribute as a literal."""
        return literal(float(self.attributes[name]))


def literal(value: float) -> str:
    """A floating-point number as an expression."""
    if math.isfinite(value):
        return repr(value)
    return "float('nan')" if math.isnan(value) else f"float('{'-' if value < 0 else ''}inf')"


def _fold(sign: str) -> Callable[[_Call], str]:
    return lambda c: f" {sign} ".join(f"({a})" for a in c.args)


def _unary(form: str) -> Callable[[_Call], str]:
    return lambda c: form.format(x=c.x)


def _keeping_nan(c: _Call) -> str:
    """The argument by which a minimum or maximum stays no number: else it takes the number."""
    return ", propagate_nan=tl.PropagateNan.ALL" if c.is_float else ""


def _extreme(function: str) -> Callable[[_Call], str]:
    def write(c: _Call) -> str:
        text = c.x
        for other in c.args[1:]:
            text = f"tl.{function}({text}, {other}{_keeping_nan(c)})"
        return text

    return write


def sigmoid(x: str) -> str:
    """The logistic function, right for large arguments of either sign."""
    return f"(1.0 / (1.0 + tl.exp(-({x}))))"


def tanh(x: str) -> str:
    return f"(2.0 / (1.0 + tl.exp(-2.0 * ({x}))) - 1.0)"


def _softplus(x: str) -> str:
    power = f"tl.exp(-tl.abs({x}))"
    one = f"(1.0 + {power})"  # what adding rounds away is made good for
    small = f"tl.where({one} == 1.0, {power}, tl.log({one}) * ({power} / ({one} - 1.0)))"
    return f"(tl.maximum({x}, 0.0) + {small})"


def _clip(c: _Call) -> str:
    text = c.x
    for bound, function in zip(c.args[1:], ("maximum", "minimum"), strict=False):
        if bound:
            text = f"tl.{function}({text}, {bound}{_keeping_nan(c)})"
    return text


def _hard_sigmoid(c: _Call) -> str:
    nan = _keeping_nan(c)
    line = f"{c.x} * {c.number('alpha')} + {c.number('beta')}"
    return f"tl.minimum(tl.maximum({line}, 0.0{nan}), 1.0{nan})"


def _gelu(c: _Call) -> str:
    if c.attributes.get("approximate", "none") == "tanh":
        inner = f"0.7978845608028654 * ({c.x} + 0.044715 * {c.x} * {c.x} * {c.x})"
        return f"0.5 * {c.x} * (1.0 + {tanh(inner)})"
    return f"0.5 * {c.x} * (1.0 + tl.erf({c.x} * 0.7071067811865476))"


def _elu(c: _Call) -> str:
    return f"tl.where({c.x} > 0.0, {c.x}, {c.number('alpha')} * (tl.exp({c.x}) - 1.0))"


def _quotient(c: _Call, x: str, y: str) -> str:
    """What `/` stands for makes zeros of float32 where it divides by more than 2 ** 126."""
    return f"{x} / ({y})" if c.dtypes[0] is DType.FLOAT64 else f"tl.div_rn({x}, {y})"


def _round(c: _Call) -> str:
    big = "12582912.0" if c.dtypes[0] is not DType.FLOAT64 else "6755399441055744.0"
    limit = "4194304.0" if c.dtypes[0] is not DType.FLOAT64 else "2251799813685248.0"
    return f"tl.where(tl.abs({c.x}) < {limit}, ({c.x} + {big}) - {big}, {c.x})"


def _power(c: _Call) -> str:
    """By logarithms, with C's answers where those have none: one, infinities, zeros with signs."""
    x, y = c.args
    size = f"tl.where(tl.abs({x}) == 1.0, 1.0, tl.exp2({y} * tl.log2(tl.abs({x}))))"
    whole = f"({y} == tl.floor({y}))"
    odd = f"({whole} & (tl.abs({y} - 2.0 * tl.floor({y} * 0.5)) == 1.0))"
    is_negative = f"(({x} < 0.0) | (1.0 / {x} == float('-inf')))"
    real = f"tl.where({whole}, 1.0, float('nan'))"
    even = f"tl.where(({x} < 0.0) & ({x} > float('-inf')), {real}, 1.0)"
    sign = f"tl.where({is_negative}, tl.where({odd}, -1.0, {even}), 1.0)"
    return f"tl.where({y} == 0.0, 1.0, {size} * {sign})"


def _sign(c: _Call) -> str:
    return f"tl.where({c.x} > 0, 1, tl.where({c.x} < 0, -1, {c.x} * 0))"


def _mean(c: _Call) -> str:
    return f"({_fold('+')(c)}) / {float(len(c.args))}"


def _cast(c: _Call) -> str:
    target = DType(c.attributes["to"])
    if target is DType.BOOL:
        return f"({c.x} != 0)"
    rounded = f"({c.x}).to({LANGUAGE_TYPES[target]})"
    return f"{rounded}.to(tl.float32)" if target in _HALVES else rounded


def _fill(c: _Call) -> str:
    """A value that no operand gives: where padding lies."""
    value = c.attributes["value"]
    if isinstance(value, float):
        return f"tl.full([], {literal(value)}, tl.float32)"
    return f"tl.full([], {int(value)}, tl.int64)"


def _swish(c: _Call) -> str:
    inner = f"{c.number('alpha')} * {c.x}"
    return f"{c.x} * {sigmoid(inner)}"


def _prelu(c: _Call) -> str:
    return f"tl.where({c.x} < 0, {c.x} * {c.y}, {c.x})"


EXPRESSIONS: Final[dict[str, Callable[[_Call], str]]] = {
    "abs": _unary("tl.abs({x})"),
    "add": _fold("+"),
    "add_scaled": lambda c: f"{c.x} + {c.number('beta')} * {c.y}",
    "and": _fold("&"),
    "cast": _cast,
    "ceil": _unary("tl.ceil({x})"),
    "clip": _clip,
    "cos": _unary("tl.cos({x})"),
    "div": lambda c: _quotient(c, c.x, c.y),
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
    "leaky_relu": lambda c: f"tl.where({c.x} < 0.0, {c.x} * {c.number('alpha')}, {c.x})",
    "less": lambda c: f"{c.x} < {c.y}",
    "less_or_equal": lambda c: f"{c.x} <= {c.y}",
    "log": _unary("tl.log({x})"),
    "max": _extreme("maximum"),
    "mean": _mean,
    "min": _extreme("minimum"),
    "mish": lambda c: f"{c.x} * {tanh(_softplus(c.x))}",
    "mul": _fold("*"),
    "neg": _unary("-({x})"),
    "not": _unary("({x}) == 0"),
    "or": _fold("|"),
    "pow": _power,
    "prelu": _prelu,
    "reciprocal": lambda c: _quotient(c, "1.0", c.x),
    "relu": lambda c: f"tl.maximum({c.x}, 0{_keeping_nan(c)})",
    "round": _round,
    "sigmoid": lambda c: sigmoid(c.x),
    "sign": _sign,
    "sin": _unary("tl.sin({x})"),
    "softplus": lambda c: _softplus(c.x),
    "softsign": lambda c: _quotient(c, c.x, f"1.0 + tl.abs({c.x})"),
    "sqrt": lambda c: f"tl.sqrt{'' if c.dtypes[0] is DType.FLOAT64 else '_rn'}({c.x})",
    "sub": _fold("-"),
    "sum": _fold("+"),
    "swish": _swish,
    "tanh": lambda c: tanh(c.x),
    "where": lambda c: f"tl.where({c.x}, {c.args[1]}, {c.args[2]})",
    "xor": _fold("^"),
}
"""For each op, what writes it."""

_NUMBERS: Final = frozenset(d for d in DType if d is not DType.BOOL)
_ANY: Final = frozenset(DType)
_ALLOWED: Final[dict[str, frozenset[DType]]] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "abs", "neg", "max", "min", "clip", "greater", "sum", "relu",
         "greater_or_equal", "less", "less_or_equal", "sign", "prelu"),
        _NUMBERS,
    ),
    **dict.fromkeys(("equal", "where", "identity", "cast"), _ANY),
    **dict.fromkeys(("and", "or", "xor", "not"), frozenset({DType.BOOL})),
}  # fmt: skip
"""Element types of the arguments, where not floating-point."""


def why_not_written(op: Op, dtypes: Sequence[DType]) -> str | None:
    """Why there is no expression for the op on arguments of these types; None when there is."""
    if op.name not in EXPRESSIONS:
        return f"there is no generated code for {op.name}"
    bad = [d.value for d in dtypes if d not in _ALLOWED.get(op.name, _FLOATS)]
    return f"{op.name} of {', '.join(bad)} is not generated" if bad else None


def expression(op: Json, args: Sequence[str], dtypes: Sequence[DType]) -> str:
    """One op on named values, as `op_as_json` holds it."""
    name, attributes = cast("tuple[str, tuple[tuple[str, Json], ...]]", op)
    return EXPRESSIONS[name](_Call(dict(attributes), args, dtypes))


def write_stages(
    line: Callable[[str], None],
    stages: Any,
    read: Callable[[int], str],
    values: list[str],
) -> str:
    """Write a program, one statement an op; return the variable of its last result.

    Args:
        line: writes a statement.
        stages: (op, arguments, dtypes of the arguments) of each op, as a spec holds them.
        read: gives the variable of an input.
        values: variables of the results so far (a root's).
    """
    for number, (op, arguments, kinds) in enumerate(stages):
        args: list[str] = [
            "" if a == ABSENT_INPUT else read(a) if a >= 0 else values[-a - 1] for a in arguments
        ]
        name = f"v{number}"
        line(f"{name} = {expression(op, args, [DType(k) for k in kinds])}")
        values.append(name)
    return values[-1]
