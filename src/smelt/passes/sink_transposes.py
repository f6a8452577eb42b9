"""Move transposes down through elementwise ops and concatenations until they cancel.

Models that were made for another axis order have transposes around every convolution. Transposes
are not moved through reshapes, so those of a channel shuffle stay.
"""

from __future__ import annotations

from typing import ClassVar

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Op, Value, remove_dead, sole_user, substitute
from smelt.passes._base import MAX_SWEEPS, NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.types import TensorType, override

_MAX_VISITED = 64
"""Largest number of nodes that are searched for transposes below a node. Chosen without a
measurement."""


class SinkTransposes(NodePass):
    """Move transposes towards the outputs, combine them, and remove those that cancel."""

    max_sweeps: ClassVar[int] = MAX_SWEEPS

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        """Combine a transpose with the one before it, or move it below the op that reads it."""
        if not node.outputs or not any(v.users or graph.is_output(v) for v in node.outputs):
            return None
        if isinstance(node.op, ops.Transpose):
            return _join(graph, node, names)
        return _sink(graph, node, names)


def _permutation(node: Node | None) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose, or None for other nodes."""
    if node is None or not isinstance(node.op, ops.Transpose):
        return None
    rank = node.output.tensor.rank
    return tuple(axis % rank for axis in node.op.order(rank))


def _join(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """Combine two consecutive transposes into one, or remove both if they cancel."""
    source = node.inputs[0]
    first, second = _permutation(source.producer if source else None), _permutation(node)
    if source is None or source.producer is None or first is None or second is None:
        return None
    original = source.producer.inputs[0]
    if original is None:
        return None
    layers = (*source.producer.layers, *node.layers)
    combined = tuple(first[axis] for axis in second)
    if combined == tuple(range(len(combined))) and substitute(graph, node.output, original):
        graph.remove(node)
        remove_dead(graph, [source])
        return Note(layers, (), "the transposes cancel each other")
    emit = NodeEmitter(graph, node, names)
    transpose = emit.finish(emit.op(ops.Transpose(combined), original))
    remove_dead(graph, [source])
    if transpose is None:
        return None
    return Note(layers, transpose.layers, f"combined into one Transpose{list(combined)}")


def _sink(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """Move the transposes of all inputs of an op below it."""
    perm = _common_permutation(graph, node)
    if perm is None or not _is_beneficial(graph, node):
        return None
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    emit = NodeEmitter(graph, node, names)
    inputs: list[Value | None] = []
    for value in node.inputs:
        if value is None or (value.constant is not None and value.constant.array.size == 1):
            inputs.append(value)
        elif value.producer is not None:
            inputs.append(value.producer.inputs[0])
        else:
            inputs.append(_transposed(emit, value, inverse))
    op = _on_axes(node.op, perm)
    old_inputs = list(node.inputs)
    transposed = emit.op(ops.Transpose(perm), emit.op(op, *inputs))
    transpose = emit.finish(transposed)
    remove_dead(graph, old_inputs)
    if transpose is None:
        return None
    moved_op = transpose.inputs[0].producer if transpose.inputs[0] is not None else None
    if moved_op is not None:  # the op keeps the node's name, the transpose gets a new one
        moved_op.name, transpose.name = transpose.name, moved_op.name
    detail = f"Transpose{list(perm)} moves below {type(op).__name__}"
    return Note(node.layers, transpose.layers, detail)


def _transposed(emit: NodeEmitter, value: Value, inverse: tuple[int, ...]) -> Value:
    """Return a constant operand with the inverse permutation applied."""
    shape = [d for d in value.tensor.shape if isinstance(d, int)]
    full = emit.integers(*[1] * (len(inverse) - len(shape)), *shape)
    return emit.op(ops.Transpose(inverse), emit.op(ops.Reshape(allowzero=1), value, full))


def _on_axes(op: Op, perm: tuple[int, ...]) -> Op:
    """Return the op with its axis mapped to the order before the transpose."""
    return ops.Concat(perm[op.axis % len(perm)]) if isinstance(op, ops.Concat) else op


def _common_permutation(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """Return the permutation that all inputs that are not constant share, or None."""
    if not _commutes_with_transpose(node):
        return None
    permutations: set[tuple[int, ...]] = set()
    for value in node.inputs:
        if value is None:
            continue
        if value.constant is not None:
            if isinstance(node.op, ops.Concat) and value.constant.array.size == 1:
                return None
            continue
        perm = _permutation(value.producer)
        is_private = all(user is node for user in value.users) and not graph.is_output(value)
        if perm is None or not is_private or len(perm) != node.output.tensor.rank:
            return None
        permutations.add(perm)
    return permutations.pop() if len(permutations) == 1 else None


def _commutes_with_transpose(node: Node) -> bool:
    """Return whether a transpose commutes with the op."""
    if len(node.outputs) != 1 or not isinstance(node.output.type, TensorType):
        return False
    return isinstance(node.op, ops.Concat) or (
        node.op.elementwise and not isinstance(node.op, ops.Fused)
    )


def _is_beneficial(graph: Graph, node: Node) -> bool:
    """Return whether moving the transposes below a node is beneficial.

    It is if fewer transposes remain, if the moved one may meet another, or if it no longer prevents
    a fusion.
    """
    transposes = {v.producer for v in node.inputs if v is not None and v.producer is not None}
    if len(transposes) > 1:
        return True
    source = transposes.pop().inputs[0]
    if source is not None and source.producer is not None and sole_user(graph, source) is not None:
        return True
    return _meets_transpose(node)


def _meets_transpose(node: Node) -> bool:
    """Return whether all readers are transposes, directly or behind elementwise ops."""
    pending, visited = [node], 0
    while pending:
        visited += 1
        current = pending.pop()
        if visited > _MAX_VISITED or not current.outputs or not current.output.users:
            return False
        for user in current.output.users:
            if isinstance(user.op, ops.Transpose):
                continue
            if not _commutes_with_transpose(user):
                return False
            pending.append(user)
    return True
