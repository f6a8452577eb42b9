"""Chains of constant factors and terms become one factor and one term.

Batch normalisation with a scale behind it, where no convolution can take either in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames, remove_dead, sole_user
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value

_MAX_ROUNDS = 1000


@dataclass(frozen=True)
class CombineAffines(Pass):
    """Bring chains of Mul and Add by constants into the form ``x * factor + term``."""

    name: ClassVar[str] = "combine-affines"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for _ in range(_MAX_ROUNDS):
            made = [n for node in list(graph.nodes) if (n := _combine(graph, node, names))]
            notes.extend(made)
            if not made:
                break
        return PassResult.of(notes)


def _split(node: Node | None) -> tuple[Value, Value] | None:
    """The operand that varies and the constant of a Mul or Add by floating-point constants."""
    if node is None or not isinstance(node.op, ops.Mul | ops.Add):
        return None
    left, right = node.inputs
    if left is None or right is None or not node.output.tensor.dtype.is_float:
        return None
    x, constant = (left, right) if left.constant is None else (right, left)
    if x.constant is not None or constant.constant is None or x.type != node.output.type:
        return None
    return x, constant


def _combine(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    outer = _split(node)
    before = outer[0].producer if outer is not None else None
    inner = _split(before)
    if outer is None or inner is None or before is None:
        return None
    if sole_user(graph, outer[0]) is not node:
        return None
    (middle, second), (x, first) = outer, inner
    if ops.combined_overflow_reason(node.op, first.constant, second.constant) is not None:
        return None
    layers = tuple(dict.fromkeys((*before.layers, *node.layers)))
    emit = Emitter(graph, node, names)
    if type(node.op) is type(before.op):
        hint = "factor" if isinstance(node.op, ops.Mul) else "term"
        result = emit.op(node.op, x, emit.op(node.op, first, second, hint=hint))
    elif isinstance(node.op, ops.Mul) and _swapping_pays(graph, node, x):
        scaled = emit.op(ops.Mul(), x, second)
        result = emit.op(ops.Add(), scaled, emit.op(ops.Mul(), first, second, hint="term"))
        if scaled.producer is not None:
            scaled.producer.layers = layers
    else:
        return None
    made = emit.finish(result)
    if made is None:
        return None
    made.layers = layers
    remove_dead(graph, [middle])
    return Note(layers, layers, "one factor and one term")


def _swapping_pays(graph: Graph, node: Node, x: Value) -> bool:
    """Whether a term that moves behind a factor, or the factor, then meets another."""
    user = sole_user(graph, node.output)
    behind = isinstance(user.op, ops.Add) and _split(user) is not None if user else False
    above = x.producer is not None and isinstance(x.producer.op, ops.Mul)
    return behind or (above and _split(x.producer) is not None and sole_user(graph, x) is not None)
