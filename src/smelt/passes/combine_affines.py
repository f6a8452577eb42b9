"""Combine chains of constant factors and terms into one factor and one term.

An example is batch normalisation followed by a scale layer, where no preceding convolution can
absorb them.
"""

from __future__ import annotations

from typing import ClassVar

from smelt import ops
from smelt.ir import Constant, FreshNames, Graph, Node, Value, sole_user
from smelt.passes._base import MAX_SWEEPS, NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import merged_layers
from smelt.types import override


class CombineAffines(NodePass):
    """Rewrite chains of Mul and Add with constants as ``x * factor + term``."""

    max_sweeps: ClassVar[int] = MAX_SWEEPS

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        """Combine a node with the Mul or Add before it, or swap an Add and the Mul after it."""
        outer = _split(node)
        producer = outer[0].producer if outer is not None else None
        inner = _split(producer)
        if outer is None or inner is None or producer is None:
            return None
        if sole_user(graph, outer[0]) is not node:
            return None
        second, (x, first) = outer[1], inner
        if _loss_reason(node, producer, first, second) is not None:
            return None
        layers = merged_layers(producer, node)
        emit = NodeEmitter(graph, node, names)
        if type(node.op) is type(producer.op):
            hint = "factor" if isinstance(node.op, ops.Mul) else "term"
            result = emit.op(node.op, x, emit.op(node.op, first, second, hint=hint))
        elif isinstance(node.op, ops.Mul) and _swapping_pays(graph, node, inner, second):
            scaled = emit.op(ops.Mul(), x, second)
            result = emit.op(ops.Add(), scaled, emit.op(ops.Mul(), first, second, hint="term"))
            if scaled.producer is not None:
                scaled.producer.layers = layers
        else:
            return None
        return emit.finish_as(result, layers, "the constant factors and terms are combined")


def _split(node: Node | None) -> tuple[Value, Value] | None:
    """Return the varying and the constant operand of a floating-point Mul or Add, or None."""
    if node is None or not isinstance(node.op, ops.Mul | ops.Add):
        return None
    left, right = node.inputs
    if left is None or right is None or not node.output.tensor.dtype.is_float:
        return None
    x, constant = (left, right) if left.constant is None else (right, left)
    if x.constant is not None or constant.constant is None or x.type != node.output.type:
        return None
    return x, constant


def _loss_reason(node: Node, producer: Node, first: Value, second: Value) -> str | None:
    """Return why folding the two constants would change the results, or None."""
    is_product = isinstance(node.op, ops.Mul) and isinstance(producer.op, ops.Mul)
    if is_product and second.constant is not None and not second.constant.array.all():
        return "the second factor contains 0: the result is NaN if the first product overflows"
    return ops.combined_overflow_reason(node.op, first.constant, second.constant)


def _swapping_pays(graph: Graph, node: Node, before: tuple[Value, Value], factor: Value) -> bool:
    """Return whether moving the term behind the factor brings two factors or terms together.

    A term that another one cancels stays: together they round, which needs their scale.
    """
    x, term = before
    user = sole_user(graph, node.output)
    following = _split(user) if user is not None and isinstance(user.op, ops.Add) else None
    if _cancels_term_before(x.producer, term):
        return False
    if following is not None:
        scaled = Constant.derive("term", ops.Mul(), term.constant, factor.constant)
        return ops.combined_overflow_reason(ops.Add(), scaled, following[1].constant) is None
    return (
        x.producer is not None
        and isinstance(x.producer.op, ops.Mul)
        and _split(x.producer) is not None
        and sole_user(graph, x) is not None
    )


def _cancels_term_before(node: Node | None, term: Value) -> bool:
    """Return whether a node adds or subtracts what ``term`` takes back."""
    if node is None or not isinstance(node.op, ops.Add | ops.Sub):
        return False
    left, right = (None if v is None else v.constant for v in node.inputs)
    op = ops.Sub() if isinstance(node.op, ops.Sub) and left is None else ops.Add()
    return ops.combined_overflow_reason(op, term.constant, left or right) is not None
