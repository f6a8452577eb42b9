"""Convolutions or products of one tensor become one wider one, and a Split that is a view.

It pays where each alone is too narrow to fill the machine: the 1x1 convolutions of an inception
block, the query, key and value of an attention. What goes straight into a concatenation is left
alone: there its result is already written in its place, and a part of a wider one would be copied.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import FreshNames
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from smelt.ir import Graph, Node, Op, Value


@dataclass(frozen=True)
class MergeSiblings(Pass):
    """Merge ops of the same kind, parameters and source."""

    name: ClassVar[str] = "merge-siblings"

    max_channels: int = 256
    """A sibling with more output channels fills the machine by itself."""
    max_features: int = 1024
    """The same for the columns of a matrix product."""
    channel_multiple: int = 8
    """Where a part starts in the wider result, in channels."""
    into_concat: bool = False
    """Whether a sibling that goes straight into a Concat is merged too."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        families: dict[Hashable, list[Node]] = {}
        names = FreshNames(graph)
        for node in graph.nodes:
            key = _key(node)
            if key is not None:
                families.setdefault(key, []).append(node)
        for siblings in families.values():
            if len(siblings) > 1:
                notes.extend(self._merge(graph, siblings, names))
        return PassResult.of(notes)

    def _merge(self, graph: Graph, siblings: list[Node], names: FreshNames) -> list[Note]:
        notes: list[Note] = []
        chosen: list[Node] = []
        for node in siblings:
            reason = self._refusal(graph, node)
            if reason is None:
                chosen.append(node)
            else:
                notes.append(Note.refusal(node.layers, f"not merged with its siblings: {reason}"))
        # A part that is not a whole number of vectors goes last, so that the others start on one.
        whole = [n for n in chosen if _channels(n) % self.channel_multiple == 0]
        ragged = [n for n in chosen if n not in whole]
        reason = f"its channels are not a multiple of {self.channel_multiple}"
        notes.extend(Note.refusal(node.layers, reason) for node in ragged[1:])
        chosen = [*whole, *ragged[:1]]
        if len(chosen) < 2:
            return notes
        before = tuple(layer for node in chosen for layer in node.layers)
        made = _build(graph, chosen, names)
        detail = f"one {type(_root(made.op)).__name__} and a Split"
        return [*notes, Note(before, made.layers, detail)]

    def _refusal(self, graph: Graph, node: Node) -> str | None:
        value = node.output
        if graph.is_output(value):
            return f"{value.name!r} is an output of the network"
        limit = self.max_channels if isinstance(_root(node.op), ops.Conv) else self.max_features
        if _channels(node) > limit:
            return f"its {_channels(node)} channels occupy the whole device"
        if not self.into_concat and any(isinstance(u.op, ops.Concat) for u in value.users):
            return "its result is written directly into a concatenation"
        return None


def _root(op: Op) -> Op:
    return op.root if isinstance(op, ops.Fused) else op


def _axis(node: Node) -> int:
    return 1 if isinstance(_root(node.op), ops.Conv) else node.output.tensor.rank - 1


def _channels(node: Node) -> int:
    shape = node.output.tensor.shape
    extent = shape[_axis(node)] if shape else 0
    return extent if isinstance(extent, int) else 0


def _key(node: Node) -> Hashable | None:
    """What two siblings have in common; None when the node can have none."""
    root = _root(node.op)
    source = node.inputs[0] if node.inputs else None
    if not isinstance(root, ops.Conv | ops.MatMul | ops.Gemm) or source is None:
        return None
    if isinstance(root, ops.Conv) and root.group != 1:
        return None
    if source.constant is not None or not _channels(node) or not node.output.users:
        return None
    weights = node.inputs[1]
    if weights is None or weights.constant is None or weights.tensor.rank < 2:
        return None
    kinds = tuple(_role(node, value) for value in node.inputs[1:])
    return None if None in kinds else (source, node.op, kinds)


def _role(node: Node, value: Value | None) -> Hashable | None:
    """How an input is joined to its siblings' inputs; None when it cannot be."""
    if value is None:
        return "absent"
    if value.constant is None:
        return None
    shape, dtype = value.tensor.shape, value.tensor.dtype
    axis = _joined_axis(node, value)
    if axis is None:
        return ("same", value.constant) if value.constant.array.size > 1 else _scalar(value)
    return ("joined", axis, dtype, shape[:axis], shape[axis + 1 :])


def _scalar(value: Value) -> Hashable:
    array = value.tensor
    return ("scalar", array, None if value.constant is None else value.constant.array.tobytes())


def _joined_axis(node: Node, value: Value) -> int | None:
    """The axis of a constant input that runs over the output channels."""
    shape = value.tensor.shape
    root = _root(node.op)
    index = node.inputs.index(value)
    if index == 1:
        by_rows = isinstance(root, ops.Conv) or (isinstance(root, ops.Gemm) and root.trans_b)
        return 0 if by_rows else len(shape) - 1
    if isinstance(root, ops.Conv) and index == 2 and not _is_stage_input(node, index):
        return 0
    axis = len(shape) - (node.output.tensor.rank - _axis(node))
    if axis < 0 or shape[axis] != _channels(node):
        return None
    return axis


def _is_stage_input(node: Node, index: int) -> bool:
    return isinstance(node.op, ops.Fused) and index >= node.op.root_inputs


def _build(graph: Graph, siblings: Sequence[Node], names: FreshNames) -> Node:
    first = min(siblings, key=graph.nodes.index)
    emit = Emitter(graph, first, names)
    inputs = list(siblings[0].inputs)
    for index, value in enumerate(inputs[1:], 1):
        axis = None if value is None else _joined_axis(siblings[0], value)
        if axis is not None:
            parts = [node.inputs[index] for node in siblings]
            inputs[index] = emit.op(ops.Concat(axis), *parts, hint="joined")
    layers = tuple(layer for node in siblings for layer in node.layers)
    name = names.make("+".join(node.name for node in siblings))
    wide = graph.add(
        dataclasses.replace(siblings[0].op), *inputs, name=name, before=first, layers=layers
    )
    sizes = emit.integers(*map(_channels, siblings), hint="split")
    split = graph.add(
        ops.Split(_axis(wide)),
        wide.output,
        sizes,
        name=names.make(f"{name}/split"),
        output_names=[node.output.name for node in siblings],
        before=first,
        layers=layers,
    )
    for node, part in zip(siblings, split.outputs, strict=True):
        graph.replace_uses(node.output, part)
        graph.remove(node)
    return wide
