"""Recognise layer normalisation that exporters decompose, and restore it as one op.

One op reads the tensor in one pass over memory instead of six.
"""

from __future__ import annotations

import math

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Op, Value, fix_numbers, sole_user
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import merged_layers, number_of, producer_of_kind, square_root_of
from smelt.types import override


class FuseLayerNormalization(NodePass):
    """Recognise ``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axis."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        """Replace a normalisation whose scale is applied by ``node``."""
        scaled = _with_vector(node, ops.Mul)
        quotient = None if scaled is None else producer_of_kind(scaled[0], ops.Div)
        statistics = None if quotient is None else _statistics(quotient)
        if scaled is None or statistics is None or sole_user(graph, scaled[0]) is not node:
            return None
        x, epsilon, inner_nodes = statistics
        last, bias = node, None
        reader = sole_user(graph, node.output)
        shifted = None if reader is None else _with_vector(reader, ops.Add)
        if reader is not None and shifted is not None and shifted[0] is node.output:
            last, bias = reader, shifted[1]
        extent = x.tensor.shape[-1]
        if not isinstance(extent, int) or last.output.type != x.type:
            return None
        chain = sorted({*inner_nodes, node, last}, key=graph.nodes.index)
        fix_numbers(*(v for n in inner_nodes for v in n.inputs))
        layers = merged_layers(*chain)
        emit = NodeEmitter(graph, last, names)
        vectors = [
            v if v.tensor.rank == 1 else emit.op(ops.Reshape(allowzero=1), v, emit.integers(extent))
            for v in (scaled[1], bias)
            if v is not None
        ]
        norm = emit.op(ops.LayerNormalization(axis=-1, epsilon=epsilon), x, *vectors)
        return emit.finish_as(norm, layers, "computed as one LayerNormalization")


def _with_vector(node: Node, kind: type[Op]) -> tuple[Value, Value] | None:
    """Return the varying operand and the constant along the last axis of a binary op, or None."""
    if not isinstance(node.op, kind) or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    x, vector = (left, right) if right is not None and right.constant is not None else (right, left)
    if x is None or vector is None or vector.constant is None or x.constant is not None:
        return None
    rank, shape = x.tensor.rank, vector.tensor.shape
    if rank == 0 or x.type != node.output.type or shape[-1:] != x.tensor.shape[-1:]:
        return None
    return (x, vector) if all(d == 1 for d in shape[:-1]) else None


def _statistics(quotient: Node) -> tuple[Value, float, list[Node]] | None:
    """Return the normalised value, epsilon and the nodes of a normalisation, or None."""
    centred, deviation = quotient.inputs
    sqrt = producer_of_kind(deviation, ops.Sqrt)
    total = None if sqrt is None else producer_of_kind(sqrt.inputs[0], ops.Add)
    centre = producer_of_kind(centred, ops.Sub)
    if sqrt is None or total is None or centre is None:
        return None
    variance, epsilon = _with_number(total)
    averaged = _mean_of_last_axis(variance)
    square = None if averaged is None else averaged.inputs[0]
    source = square_root_of(square)
    x = centre.inputs[0]
    mean = _mean_of_last_axis(centre.inputs[1])
    if x is None or mean is None or averaged is None or mean.inputs[0] is not x:
        return None
    if source is not centred and not _is_same_difference(source, centre):
        return None
    nodes = [quotient, sqrt, total, centre, averaged, mean]
    if square is not None and square.producer is not None:
        nodes.append(square.producer)
    return x, epsilon, nodes


def _with_number(add: Node) -> tuple[Value | None, float]:
    """Return the varying operand of an Add and its constant scalar; None and NaN for others."""
    for value, number in (add.inputs, add.inputs[::-1]):
        if (constant := number_of(number)) is not None:
            return value, constant
    return None, math.nan


def _mean_of_last_axis(value: Value | None) -> Node | None:
    """Return the ReduceMean over the last axis that computes a value, or None."""
    node = producer_of_kind(value, ops.ReduceMean)
    if node is None or not isinstance(node.op, ops.ReduceMean) or not node.op.keepdims:
        return None
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is None or axes.constant is None or node.inputs[0] is None:
        return None
    last = node.inputs[0].tensor.rank - 1
    return node if axes.constant.array.tolist() in ([-1], [last]) else None


def _is_same_difference(value: Value | None, centre: Node) -> bool:
    """Return whether a value is the same difference as ``centre``.

    Some exporters subtract the mean twice.
    """
    other = producer_of_kind(value, ops.Sub)
    if other is None or other.inputs[0] is not centre.inputs[0]:
        return False
    mean = _mean_of_last_axis(other.inputs[1])
    return mean is not None and mean.inputs[0] is centre.inputs[0]
