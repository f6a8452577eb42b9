"""Activations that exporters spell out in small ops become one op again.

A code generator computes the one op with fewer instructions, and an epilogue has a bounded number
of stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._patterns import fix_numbers_between, layers_between, made_by, number_of
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.ir import Graph, Node, Op, Value

_CLOSE = 1e-4


@dataclass(frozen=True)
class RecognizeActivations(Pass):
    """Recognise Swish, HardSwish, Mish and Gelu."""

    name: ClassVar[str] = "recognize-activations"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            if node.outputs and not (node.output.users or graph.is_output(node.output)):
                continue
            for pattern in _PATTERNS:
                found = pattern(node)
                if found is None or found[0].type != node.output.type:
                    continue
                layers = layers_between(graph, node, found[0])
                fix_numbers_between(graph, node, found[0])
                emit = Emitter(graph, node, names)
                made = emit.finish(emit.op(found[1], found[0]))
                if made is not None:
                    made.layers = layers
                    notes.append(Note(layers, layers, f"one {type(found[1]).__name__}"))
                break
        graph.remove_unused()
        return PassResult.of(notes)


def _is_number(value: Value | None, wanted: float) -> bool:
    number = number_of(value)
    return number is not None and math.isclose(number, wanted, rel_tol=_CLOSE, abs_tol=1e-12)


def _pairs(node: Node | None) -> list[tuple[Value, Value]]:
    """The operands of a binary op, both ways round."""
    if node is None or len(node.inputs) != 2:
        return []
    left, right = node.inputs
    return [] if left is None or right is None else [(left, right), (right, left)]


def _scaled(value: Value, factor: float) -> Value | None:
    """``x`` where the value is ``x * factor``, or ``x / (1 / factor)``."""
    for x, number in _pairs(made_by(value, ops.Mul)):
        if _is_number(number, factor):
            return x
    divided = made_by(value, ops.Div)
    if divided is not None and _is_number(divided.inputs[1], 1 / factor):
        return divided.inputs[0]
    return None


def _shifted(value: Value | None, term: float) -> Value | None:
    for x, number in _pairs(made_by(value, ops.Add)):
        if _is_number(number, term):
            return x
    return None


def _swish(node: Node) -> tuple[Value, Op] | None:
    """X * sigmoid(x)."""
    for x, gate in _pairs(node if isinstance(node.op, ops.Mul) else None):
        sigmoid = made_by(gate, ops.Sigmoid)
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return x, ops.Swish()
    return None


def _mish(node: Node) -> tuple[Value, Op] | None:
    """X * tanh(softplus(x))."""
    for x, gate in _pairs(node if isinstance(node.op, ops.Mul) else None):
        tanh = made_by(gate, ops.Tanh)
        softplus = None if tanh is None else made_by(tanh.inputs[0], ops.Softplus)
        if softplus is not None and softplus.inputs[0] is x:
            return x, ops.Mish()
    return None


def _is_relu6(node: Node) -> bool:
    return (
        isinstance(node.op, ops.Clip)
        and len(node.inputs) == 3
        and _is_number(node.inputs[1], 0)
        and _is_number(node.inputs[2], 6)
    )


def _hard_gate(value: Value | None, x: Value) -> bool:
    """Whether the value is clip(x + 3, 0, 6)."""
    clip = made_by(value, ops.Clip)
    return clip is not None and _is_relu6(clip) and _shifted(clip.inputs[0], 3) is x


def _hard_swish(node: Node) -> tuple[Value, Op] | None:
    """X * hard_sigmoid(x), x * (clip(x + 3, 0, 6) / 6) or (x * clip(x + 3, 0, 6)) / 6."""
    for x, gate in _pairs(node if isinstance(node.op, ops.Mul) else None):
        hard = made_by(gate, ops.HardSigmoid)
        if hard is not None and hard.inputs[0] is x and _is_sixth(hard.op):
            return x, ops.HardSwish()
        if _hard_gate(_scaled(gate, 1 / 6), x):
            return x, ops.HardSwish()
    product = _scaled(node.output, 1 / 6)
    for x, gate in _pairs(made_by(product, ops.Mul)):
        if _hard_gate(gate, x):
            return x, ops.HardSwish()
    return None


def _is_sixth(op: Op) -> bool:
    return (
        isinstance(op, ops.HardSigmoid)
        and math.isclose(op.alpha, 1 / 6, rel_tol=_CLOSE)
        and math.isclose(op.beta, 0.5, rel_tol=_CLOSE)
    )


def _factors(value: Value) -> tuple[float, list[Value]]:
    """A product as its constant factor and its other factors."""
    number, pending = 1.0, [value]
    others: list[Value] = []
    while pending and len(others) < 8:
        current = pending.pop()
        node = current.producer
        if (known := number_of(current)) is not None:
            number *= known
        elif node is not None and isinstance(node.op, ops.Mul):
            pending.extend(v for v in node.inputs if v is not None)
        elif node is not None and isinstance(node.op, ops.Div) and number_of(node.inputs[1]):
            number /= number_of(node.inputs[1]) or 1.0
            pending.extend(v for v in node.inputs[:1] if v is not None)
        else:
            others.append(current)
    return number, others


def _gelu(node: Node) -> tuple[Value, Op] | None:
    """0.5 * x * (1 + erf(x / sqrt(2))), in any order of factors."""
    if not isinstance(node.op, ops.Mul | ops.Div):
        return None
    number, others = _factors(node.output)
    if len(others) != 2 or not math.isclose(number, 0.5, rel_tol=_CLOSE):
        return None
    for x, gate in (others, others[::-1]):
        erf = made_by(_shifted(gate, 1), ops.Erf)
        inner = (
            None if erf is None or erf.inputs[0] is None else _scaled(erf.inputs[0], math.sqrt(0.5))
        )
        if inner is x:
            return x, ops.Gelu()
    return None


_PATTERNS: tuple[Callable[[Node], tuple[Value, Op] | None], ...] = (
    _gelu,
    _hard_swish,
    _swish,
    _mish,
)
