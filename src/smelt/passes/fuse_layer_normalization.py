"""Recognise layer normalisation that exporters decompose, and restore it as one op.

One op reads the tensor in one pass over memory instead of six.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames, fix_numbers, remove_dead, sole_user
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._patterns import producer_of_kind
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value


@dataclass(frozen=True)
class FuseLayerNormalization(Pass):
    """Recognise ``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axis."""

    name: ClassVar[str] = "fuse-layer-normalization"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            note = _recognize(graph, node, names)
            if note is not None:
                notes.append(note)
        return PassResult.of(notes)


def _recognize(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """Replace a normalisation whose scale is applied by ``node``; None if there is none."""
    normalised, scale = _with_vector(node, ops.Mul)
    quotient = producer_of_kind(normalised, ops.Div)
    statistics = None if quotient is None else _statistics(quotient)
    if (
        normalised is None
        or scale is None
        or statistics is None
        or sole_user(graph, normalised) is not node
    ):
        return None
    x, epsilon, inner_nodes = statistics
    last, bias = node, None
    reader = sole_user(graph, node.output)
    if reader is not None and _with_vector(reader, ops.Add)[0] is node.output:
        last, bias = reader, _with_vector(reader, ops.Add)[1]
    extent = x.tensor.shape[-1]
    if not isinstance(extent, int) or last.output.type != x.type:
        return None
    chain = sorted({*inner_nodes, node, last}, key=graph.nodes.index)
    numbers = [v for n in inner_nodes for v in n.inputs]
    layers = tuple(dict.fromkeys(layer for n in chain for layer in n.layers))
    emit = Emitter(graph, last, names)
    vectors = [
        v if v.tensor.rank == 1 else emit.op(ops.Reshape(allowzero=1), v, emit.integers(extent))
        for v in (scale, bias)
        if v is not None
    ]
    old_inputs = list(last.inputs)
    norm = emit.finish(emit.op(ops.LayerNormalization(axis=-1, epsilon=epsilon), x, *vectors))
    if norm is None:
        return None
    norm.layers = layers
    fix_numbers(*numbers)
    remove_dead(graph, old_inputs)
    return Note(layers, layers, "one LayerNormalization")


def _with_vector(node: Node, kind: type[Op]) -> tuple[Value | None, Value | None]:
    """Return the varying operand and the constant along the last axis of a binary op, or Nones."""
    if not isinstance(node.op, kind) or len(node.inputs) != 2:
        return None, None
    left, right = node.inputs
    x, vector = (left, right) if right is not None and right.constant is not None else (right, left)
    if x is None or vector is None or vector.constant is None or x.constant is not None:
        return None, None
    rank, shape = x.tensor.rank, vector.tensor.shape
    if rank == 0 or x.type != node.output.type or shape[-1:] != x.tensor.shape[-1:]:
        return None, None
    return (x, vector) if all(d == 1 for d in shape[:-1]) else (None, None)


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
    source = _square_root_of(square)
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
    left, right = add.inputs
    value, number = (
        (left, right) if right is not None and right.constant is not None else (right, left)
    )
    if number is None or number.constant is None or number.constant.array.size != 1:
        return None, math.nan
    return value, float(number.constant.array.ravel()[0])


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


def _square_root_of(square: Value | None) -> Value | None:
    """Return ``d`` if the value is ``d * d`` or ``d ** 2``, or None."""
    product = producer_of_kind(square, ops.Mul)
    if product is not None and product.inputs[0] is product.inputs[1]:
        return product.inputs[0]
    power = producer_of_kind(square, ops.Pow)
    if power is None:
        return None
    base, exponent = power.inputs
    if exponent is None or exponent.constant is None or exponent.constant.array.size != 1:
        return None
    return base if float(exponent.constant.array.ravel()[0]) == 2 else None


def _is_same_difference(value: Value | None, centre: Node) -> bool:
    """Return whether a value is the same difference as ``centre``.

    Some exporters subtract the mean twice.
    """
    other = producer_of_kind(value, ops.Sub)
    if other is None or other.inputs[0] is not centre.inputs[0]:
        return False
    mean = _mean_of_last_axis(other.inputs[1])
    return mean is not None and mean.inputs[0] is centre.inputs[0]
