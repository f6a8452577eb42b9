"""Transposes move down through elementwise ops and concatenations until they meet and cancel.

Models made for another axis order have them around every convolution. A reshape between two
transposes (a channel shuffle) is not looked through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames, remove_dead, sole_user, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value

_MAX_ROUNDS = 1000


@dataclass(frozen=True)
class SinkTransposes(Pass):
    """Push transposes towards the outputs, join them, and drop those that cancel."""

    name: ClassVar[str] = "sink-transposes"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for _ in range(_MAX_ROUNDS):
            made = [note for node in list(graph.nodes) if (note := _step(graph, node, names))]
            notes.extend(made)
            if not made:
                break
        return PassResult.of(notes)


def _step(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    if not node.outputs or not any(v.users or graph.is_output(v) for v in node.outputs):
        return None
    if isinstance(node.op, ops.Transpose):
        return _join(graph, node, names)
    return _sink(graph, node, names)


def _permutation(node: Node | None) -> tuple[int, ...] | None:
    if node is None or not isinstance(node.op, ops.Transpose):
        return None
    rank = node.output.tensor.rank
    return (
        tuple(range(rank))[::-1] if node.op.perm is None else tuple(p % rank for p in node.op.perm)
    )


def _join(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """A transpose of a transpose is one, or none."""
    source = node.inputs[0]
    first, second = _permutation(source.producer if source else None), _permutation(node)
    if source is None or source.producer is None or first is None or second is None:
        return None
    original = source.producer.inputs[0]
    if original is None:
        return None
    before = (*source.producer.layers, *node.layers)
    both = tuple(first[axis] for axis in second)
    if both == tuple(range(len(both))) and substitute(graph, node.output, original):
        graph.remove(node)
        remove_dead(graph, [source])
        return Note(before, (), "they cancel")
    emit = Emitter(graph, node, names)
    made = emit.finish(emit.op(ops.Transpose(both), original))
    remove_dead(graph, [source])
    return None if made is None else Note(before, made.layers, f"one Transpose{list(both)}")


def _sink(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    perm = _common_permutation(graph, node)
    if perm is None or not _pays(graph, node):
        return None
    inverse = tuple(perm.index(axis) for axis in range(len(perm)))
    emit = Emitter(graph, node, names)
    inputs: list[Value | None] = []
    for value in node.inputs:
        if value is None or (value.constant is not None and value.constant.array.size == 1):
            inputs.append(value)
        elif value.producer is not None:
            inputs.append(value.producer.inputs[0])
        else:
            inputs.append(_transposed(emit, value, inverse))
    op = _on_axes(node.op, perm)
    old = list(node.inputs)
    below = emit.op(ops.Transpose(perm), emit.op(op, *inputs))
    made = emit.finish(below)
    remove_dead(graph, old)
    if made is None:
        return None
    moved = made.inputs[0].producer if made.inputs[0] is not None else None
    if moved is not None:  # the op keeps the name, the transpose gets a new one
        moved.name, made.name = made.name, moved.name
    return Note(node.layers, made.layers, f"Transpose{list(perm)} moves below {type(op).__name__}")


def _transposed(emit: Emitter, value: Value, inverse: tuple[int, ...]) -> Value:
    """A constant operand as it must be before the transpose."""
    shape = [d for d in value.tensor.shape if isinstance(d, int)]
    full = emit.integers(*[1] * (len(inverse) - len(shape)), *shape)
    return emit.op(ops.Transpose(inverse), emit.op(ops.Reshape(), value, full))


def _on_axes(op: Op, perm: tuple[int, ...]) -> Op:
    return ops.Concat(perm[op.axis % len(perm)]) if isinstance(op, ops.Concat) else op


def _common_permutation(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The permutation of all inputs that are not constant, when there is one."""
    if not _is_transparent(node):
        return None
    found: set[tuple[int, ...]] = set()
    for value in node.inputs:
        if value is None:
            continue
        if value.constant is not None:
            if isinstance(node.op, ops.Concat) and value.constant.array.size == 1:
                return None
            continue
        perm = _permutation(value.producer)
        alone = all(user is node for user in value.users) and not graph.is_output(value)
        if perm is None or not alone or len(perm) != node.output.tensor.rank:
            return None
        found.add(perm)
    return found.pop() if len(found) == 1 else None


def _is_transparent(node: Node) -> bool:
    if len(node.outputs) != 1 or not isinstance(node.output.type, TensorType):
        return False
    return isinstance(node.op, ops.Concat) or (
        node.op.elementwise and not isinstance(node.op, ops.Fused)
    )


def _pays(graph: Graph, node: Node) -> bool:
    """Whether fewer are left, or this one may meet another or leave the way of a fusion."""
    transposes = {v.producer for v in node.inputs if v is not None and v.producer is not None}
    if len(transposes) > 1:
        return True
    source = next(v for v in node.inputs if v is not None and v.producer is not None)
    above = source.producer.inputs[0] if source.producer is not None else None
    fusable = (
        above is not None and above.producer is not None and sole_user(graph, above) is not None
    )
    return fusable or _meets_transpose(node)


def _meets_transpose(node: Node) -> bool:
    """Whether all readers are transposes, perhaps behind more elementwise ops."""
    pending, seen = [node], 0
    while pending:
        seen += 1
        current = pending.pop()
        if seen > 64 or not current.outputs or not current.output.users:
            return False
        for user in current.output.users:
            if isinstance(user.op, ops.Transpose):
                continue
            if not _is_transparent(user):
                return False
            pending.append(user)
    return True
