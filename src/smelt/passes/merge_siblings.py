"""Merge convolutions or products of one tensor into a wider op followed by a Split (a view).

Merging pays where each op alone is too narrow to occupy the device: the 1x1 convolutions of an
inception block, or the query, key and value projections of an attention. An op whose result is read
by a concatenation is not merged: its result is already written in its place there, and a part of a
wider result would have to be copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, fix_numbers
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import channel_axis, root_of
from smelt.types import override


@dataclass(frozen=True)
class MergeSiblings(Pass):
    """Merge ops of the same kind that have the same parameters and input."""

    max_channels: int = 256
    """Largest number of output channels of a mergeable convolution; a wider one occupies the device
    by itself.
    """
    max_features: int = 1024
    """Largest number of columns of a mergeable matrix product."""
    channel_multiple: int = 8
    """Each part of the wider result must start at a multiple of this number of channels."""
    into_concat: bool = False
    """Whether to merge ops whose results a Concat reads."""

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
        """Merge those siblings that may be merged, and return the notes."""
        notes: list[Note] = []
        chosen: list[Node] = []
        for node in siblings:
            reason = self._refusal(graph, node)
            if reason is None:
                chosen.append(node)
            else:
                kept = f"not merged with other layers that read its input, because {reason}"
                notes.append(Note.refusal(node.layers, kept))
        # At most one part may have another number of channels. It goes last, so that every part
        # starts at a multiple.
        aligned = [n for n in chosen if _channels(n) % self.channel_multiple == 0]
        unaligned = [n for n in chosen if n not in aligned]
        for node in unaligned[1:]:
            reason = f"its channel count {_channels(node)} is not a multiple of"
            notes.append(Note.refusal(node.layers, f"{reason} {self.channel_multiple}"))
        chosen = [*aligned, *unaligned[:1]]
        if len(chosen) < 2:
            return notes
        layers = tuple(layer for node in chosen for layer in node.layers)
        merged = _build(graph, chosen, names)
        detail = f"computed as one {type(root_of(merged.op)).__name__} and a Split"
        return [*notes, Note(layers, merged.layers, detail)]

    def _refusal(self, graph: Graph, node: Node) -> str | None:
        """Return why a node must not be merged, or None."""
        value = node.output
        if graph.is_output(value):
            return f"{value.name!r} is an output of the network"
        limit = self.max_channels if isinstance(root_of(node.op), ops.Conv) else self.max_features
        if _channels(node) > limit:
            return f"its {_channels(node)} channels occupy the whole device (the limit is {limit})"
        if not self.into_concat and any(isinstance(u.op, ops.Concat) for u in value.users):
            return "its result is written directly into a concatenation"
        return None


def _channels(node: Node) -> int:
    shape = node.output.tensor.shape
    extent = shape[channel_axis(node)] if shape else 0
    return extent if isinstance(extent, int) else 0


def _key(node: Node) -> Hashable | None:
    """Return a key that is equal for nodes that can be merged; None if the node cannot be."""
    root = root_of(node.op)
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
    roles = tuple(_role(node, value) for value in node.inputs[1:])
    return None if None in roles else (source, node.op, roles)


def _role(node: Node, value: Value | None) -> Hashable | None:
    """Return how a constant input is combined with the siblings' inputs; None if it cannot be."""
    if value is None:
        return "absent"
    if value.constant is None:
        return None
    shape, dtype = value.tensor.shape, value.tensor.dtype
    axis = _joined_axis(node, value)
    if axis is None and value.constant.array.size > 1:
        return ("same", value.constant)
    if axis is None:  # a constant with one element, which all siblings must share
        return ("scalar", value.tensor, value.constant.array.tobytes())
    return ("joined", axis, dtype, shape[:axis], shape[axis + 1 :])


def _joined_axis(node: Node, value: Value) -> int | None:
    """Return the axis of a constant input that runs over the output channels, or None."""
    shape = value.tensor.shape
    root = root_of(node.op)
    index = node.inputs.index(value)
    if index == 1:
        by_rows = isinstance(root, ops.Conv) or (isinstance(root, ops.Gemm) and root.trans_b)
        return 0 if by_rows else len(shape) - 1
    is_bias = index == 2 and not (isinstance(node.op, ops.Fused) and index >= node.op.root_inputs)
    if isinstance(root, ops.Conv) and is_bias:
        return 0
    axis = len(shape) - (node.output.tensor.rank - channel_axis(node))
    if axis < 0 or shape[axis] != _channels(node):
        return None
    return axis


def _build(graph: Graph, siblings: Sequence[Node], names: FreshNames) -> Node:
    """Replace the siblings by a wider node and a Split of its result."""
    first = min(siblings, key=graph.nodes.index)
    emit = NodeEmitter(graph, first, names)
    inputs = list(siblings[0].inputs)
    for index, value in enumerate(inputs[1:], 1):
        axis = None if value is None else _joined_axis(siblings[0], value)
        if axis is not None:
            parts = [node.inputs[index] for node in siblings]
            inputs[index] = emit.op(ops.Concat(axis), *parts, hint="joined")
        elif len({v.constant for node in siblings if (v := node.inputs[index])}) > 1:
            fix_numbers(*(node.inputs[index] for node in siblings))
    layers = tuple(layer for node in siblings for layer in node.layers)
    name = names.make("+".join(node.name for node in siblings))
    wide = graph.add(siblings[0].op, *inputs, name=name, before=first, layers=layers)
    sizes = emit.integers(*map(_channels, siblings), hint="split")
    op, label = ops.Split(channel_axis(wide)), names.make(f"{name}/split")
    results = [node.output.name for node in siblings]
    split = graph.add(
        op, wide.output, sizes, name=label, output_names=results, before=first, layers=layers
    )
    for node, part in zip(siblings, split.outputs, strict=True):
        graph.replace_uses(node.output, part)
        graph.remove(node)
    return wide
