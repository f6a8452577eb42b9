"""Fuse a convolution with another convolution whose result is added to it.

A residual block that changes the number of channels projects its shortcut by a pointwise
convolution. As one node the two are one longer sum: the projection is neither stored nor read
again, and one launch is saved.
"""

from __future__ import annotations

from dataclasses import replace

from smelt import ops
from smelt.ir import Constant, FreshNames, Graph, Node, Value
from smelt.passes._base import NodePass, Note
from smelt.passes._patterns import merged_layers, replace_node, root_of
from smelt.types import override


class FuseConvSums(NodePass):
    """Compute the sum of two convolutions in one op."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        other = _added_to(node)
        if other is None:
            return None
        layers = (*node.layers, *other.layers)
        if graph.is_output(other.output) or len(other.output.users) > 1:
            readers = f"{other.output.name!r} is an output of the network or has other readers"
            return Note.refusal(layers, readers)
        if (reason := _bias_overflow_reason(node, other)) is not None:
            return Note.refusal(layers, reason)
        return Note(layers, _fuse(graph, node, other).layers)


def _added_to(node: Node) -> Node | None:
    """Return the convolution whose result the first stage of the node's epilogue adds, or None.

    One of the two convolutions must be pointwise.
    """
    fused = node.op
    if not isinstance(fused, ops.Fused) or not _is_dense(node) or not fused.stages:
        return None
    stage, *rest = fused.stages
    operand_indices = [a for a in stage.arguments if a >= fused.root_inputs]
    if not isinstance(stage.op, ops.Add) or -1 not in stage.arguments or len(operand_indices) != 1:
        return None
    if any(-1 in s.arguments or operand_indices[0] in s.arguments for s in rest):
        return None
    value = node.inputs[operand_indices[0]]
    producer = None if value is None else value.producer
    if producer is None or not isinstance(producer.op, ops.Conv) or not _is_dense(producer):
        return None
    fits = value is not None and value.tensor == node.output.tensor
    return producer if fits and (_is_pointwise(producer.op) or _is_pointwise(fused.root)) else None


def _is_dense(node: Node) -> bool:
    """Return whether the root is a convolution in one group with constant weights and bias."""
    root = root_of(node.op)
    if not isinstance(root, ops.Conv) or root.group != 1:
        return False
    return all(v is None or v.constant is not None for v in _root_inputs(node)[1:])


def _root_inputs(node: Node) -> list[Value | None]:
    """Return the inputs of the root of a node."""
    return node.inputs[: node.op.root_inputs] if isinstance(node.op, ops.Fused) else node.inputs


def _is_pointwise(op: object) -> bool:
    """Return whether an op is a convolution with a kernel of one element and no padding."""
    return isinstance(op, ops.Conv) and not any(op.pads) and set(op.kernel_shape) == {1}


def _fuse(graph: Graph, node: Node, other: Node) -> Node:
    """Replace the convolution that adds, and the added one, by one ConvSum with the epilogue."""
    fused = node.op
    assert isinstance(fused, ops.Fused)  # noqa: S101  (checked by _added_to)
    assert isinstance(fused.root, ops.Conv)  # noqa: S101
    assert isinstance(other.op, ops.Conv)  # noqa: S101
    stage, *rest = fused.stages
    added_index = next(a for a in stage.arguments if a >= 0)
    parts = [(fused.root, node), (other.op, other)]
    if not _is_pointwise(other.op):
        parts.reverse()
    root_inputs: list[Value | None] = [v for _, part in parts for v in part.inputs[:2]]
    bias = _bias(graph, node, other)
    root_inputs += [] if bias is None else [bias]
    extras = list(node.inputs[fused.root_inputs :])
    del extras[added_index - fused.root_inputs]
    op: ops.Op = ops.ConvSum(parts[0][0], parts[1][0])
    if rest:
        new_index = {
            k: len(root_inputs) + (k - fused.root_inputs) - (k > added_index)
            for k in range(fused.root_inputs, len(node.inputs))
        }
        stages = (
            replace(s, arguments=tuple(new_index[a] if a >= 0 else a + 1 for a in s.arguments))
            for s in rest
        )
        op = ops.Fused(op, len(root_inputs), tuple(stages))
    layers = merged_layers(other, node)
    conv_sum = replace_node(graph, node, op, *root_inputs, *extras, layers=layers)
    graph.remove(other)
    return conv_sum


def _biases(node: Node, other: Node) -> list[Value]:
    """Return the biases of both convolutions that are present."""
    return [v for v in (*_root_inputs(node)[2:], *other.inputs[2:]) if v is not None]


def _bias_overflow_reason(node: Node, other: Node) -> str | None:
    """Return why the sum of both biases leaves the range of its type, or None."""
    values = _biases(node, other)
    if len(values) < 2:
        return None
    return ops.combined_overflow_reason(ops.Add(), *(v.constant for v in values))


def _bias(graph: Graph, node: Node, other: Node) -> Value | None:
    """Return the sum of both biases, the only bias, or None."""
    values = _biases(node, other)
    constants = [v.constant for v in values if v.constant is not None]
    if len(constants) < 2:
        return next(iter(values), None)
    first, second = constants
    name = f"{first.name}+{second.name}"
    return graph.add_constant(Constant.derive(name, ops.Add(), first, second))
