"""Fuse elementwise ops into the convolution, product, pooling or elementwise op before them.

Starting from a *root*, the pass collects one reader after the other, as long as it is elementwise
and keeps the shape. A prefix of the collected nodes can be fused if all its results but the last
are read only inside the prefix. The longest such prefix becomes one ``Fused`` node at the position
of its last node, where all its inputs have been computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt import ops
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._patterns import channel_axis, merged_layers
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value

_PRODUCTS = (ops.Conv, ops.ConvInteger, ops.ConvTranspose, ops.Gemm, ops.MatMul, ops.MatMulInteger)
_GATHER_TYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
"""Element types of a Gather with an epilogue, which is computed in float32."""
_POOLS = (ops.MaxPool, ops.AveragePool, ops.GlobalAveragePool, ops.GlobalMaxPool)


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Fuse elementwise ops into the op that they follow."""

    max_stages: int = 12
    """Largest number of stages of an epilogue."""
    pools: bool = True
    """Whether epilogues are fused into pooling."""
    gathers: bool = False
    """Whether epilogues are fused into Gather."""
    excluded: tuple[str, ...] = ()
    """Names of ops that are never fused, because a backend has no generated code for them."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        positions = {node: position for position, node in enumerate(graph.nodes)}
        # Products first, where fusion saves most; then pools; then chains of elementwise ops.
        kinds = [_PRODUCTS, *[_POOLS] * self.pools, *[(ops.Gather,)] * self.gathers]
        for kind in kinds:
            for node in list(graph.nodes):
                if isinstance(node.op, kind) and len(node.outputs) == 1:
                    notes.extend(self._fuse(graph, node, positions))
        for node in list(graph.nodes):
            if self._is_fusable(node) and node in positions:
                notes.extend(self._fuse(graph, node, positions))
        return PassResult.of(notes)

    def _is_fusable(self, node: Node) -> bool:
        """Return whether a node may be a stage of an epilogue."""
        return (
            node.op.elementwise
            and len(node.outputs) == 1
            and isinstance(node.output.type, TensorType)
            and not isinstance(node.op, ops.Fused)
            and node.output.dims is None  # shape arithmetic, which inference must see
            and node.op.name not in self.excluded
        )

    def _fuse(self, graph: Graph, root: Node, positions: dict[Node, int]) -> list[Note]:
        """Fuse the readers of one root into it, and return the notes."""
        if root not in graph.nodes:
            return []
        group, reason = self._grow(graph, root, positions)
        notes = [Note.refusal(root.layers, reason)] if reason else []
        if len(group) < 2:
            return notes
        layers = tuple(layer for node in group for layer in node.layers)
        fused = _build(graph, group, positions)
        chain = " | ".join(type(node.op).__name__ for node in group)
        return [Note(layers, fused.layers, chain)]

    def _grow(self, graph: Graph, root: Node, positions: dict[Node, int]) -> tuple[list[Node], str]:
        """Return the nodes to fuse, root first; or only the root, and why no reader joins it."""
        group, fusable_count = [root], 1
        while len(group) <= self.max_stages:
            reader = _next_reader(group, positions)
            if reader is None or not self._fits(root, reader):
                break
            side_nodes = self._side_nodes(graph, root, reader, group)
            group += [*side_nodes, reader]
            if len(group) - 1 <= self.max_stages and _is_closed(graph, group):
                fusable_count = len(group)
        if fusable_count > 1 or len(group) < 2:
            return group[:fusable_count], ""
        return group[:1], _explain_open(graph, root)

    def _fits(self, root: Node, reader: Node) -> bool:
        """Return whether a reader may be a stage of the root's epilogue."""
        if not self._is_fusable(reader) or reader.output.tensor.shape != root.output.tensor.shape:
            return False
        if root.op.elementwise:
            return True
        if isinstance(root.op, ops.Gather):
            values = (root.output, reader.output, *(v for v in reader.inputs if v is not None))
            dtype = root.output.tensor.dtype
            return dtype in _GATHER_TYPES and all(v.tensor.dtype is dtype for v in values)
        if reader.output.type != root.output.type and not _reads_bytes(root):
            return False
        return all(_suits_epilogue(root, v) for v in reader.inputs if v is not None)

    def _side_nodes(
        self, graph: Graph, root: Node, reader: Node, group: Sequence[Node]
    ) -> list[Node]:
        """Return elementwise nodes that only ``reader`` reads: the other branches of a tree."""
        if not (root.op.elementwise or _reads_bytes(root)):
            return []
        side_nodes: list[Node] = []
        for value in reader.inputs:
            node = None if value is None else value.producer
            if node is None or value is None or node in group or node in side_nodes:
                continue
            if not (root.op.elementwise or isinstance(node.op, ops.DequantizeLinear)):
                continue
            is_private = all(user is reader for user in value.users) and not graph.is_output(value)
            depends_on_group = any(v is not None and v.producer in group for v in node.inputs)
            if is_private and not depends_on_group and self._fits(root, node):
                side_nodes.append(node)
        return side_nodes


def _reads_bytes(root: Node) -> bool:
    """Return whether the root reads 8-bit integers.

    The stages after such a root convert the sums to floats and possibly back to bytes, so their
    types may differ.
    """
    value = root.inputs[0] if root.inputs else None
    if value is None or not isinstance(value.type, TensorType):
        return False
    return value.tensor.dtype in {DType.INT8, DType.UINT8}


def _next_reader(group: Sequence[Node], positions: dict[Node, int]) -> Node | None:
    """Return the first node outside the group that reads a result of the group, or None."""
    readers = [u for node in group for u in node.output.users if u not in group]
    return min(readers, key=lambda node: positions[node], default=None)


def _is_closed(graph: Graph, group: Sequence[Node]) -> bool:
    """Return whether only the last node's result is read outside the group."""
    return not any(
        graph.is_output(node.output) or any(user not in group for user in node.output.users)
        for node in group[:-1]
    )


def _explain_open(graph: Graph, root: Node) -> str:
    """Return why no reader could be fused into the root."""
    value = root.output
    if graph.is_output(value):
        return f"{value.name!r} is an output of the network, so nothing is fused after it"
    return f"{value.name!r} has several readers"


def _suits_epilogue(root: Node, value: Value) -> bool:
    """Return whether an operand has one element, one per channel, or one per result element."""
    if not isinstance(value.type, TensorType):
        return False
    full = root.output.tensor
    shape = value.type.shape
    if shape == full.shape:
        return True
    channels = channel_axis(root)
    offset = full.rank - len(shape)
    return all(d == 1 or offset + i == channels for i, d in enumerate(shape))


def _build(graph: Graph, group: Sequence[Node], positions: dict[Node, int]) -> Node:
    """Replace the group by one node at the position of its last node."""
    root, last = group[0], group[-1]
    inputs: list[Value | None] = list(root.inputs)
    # Negative arguments of a stage denote the results of the root and the stages before it.
    arguments_by_value = {node.output: -1 - number for number, node in enumerate(group)}
    stages: list[ops.Stage] = []
    for node in group[1:]:
        arguments = [
            _argument(value, arguments_by_value, inputs, len(root.inputs)) for value in node.inputs
        ]
        stages.append(ops.Stage(node.op, tuple(arguments)))
    layers = merged_layers(*group)
    op: Op = ops.Fused(root.op, len(root.inputs), tuple(stages))
    position = max(positions[node] for node in group)
    anchor = next(node for node in group if positions[node] == position)
    name = last.output.name
    fused = graph.add(
        op, *inputs, name=root.name, output_names=(name,), before=anchor, layers=layers
    )
    positions[fused] = position
    graph.replace_uses(last.output, fused.output)
    for node in sorted(group, key=lambda n: -positions[n]):
        graph.remove(node)
        del positions[node]
    return fused


def _argument(
    value: Value | None, internal: dict[Value, int], inputs: list[Value | None], root_inputs: int
) -> int:
    """Return the stage argument for a value; external values are appended to ``inputs``."""
    if value is not None and value in internal:
        return internal[value]
    for index in range(root_inputs, len(inputs)):
        if inputs[index] is value:
            return index
    inputs.append(value)
    return len(inputs) - 1
