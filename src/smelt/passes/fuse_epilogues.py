"""Epilogues: elementwise ops join the convolution, product, pooling or elementwise op before them.

Starting from a *root*, the pass takes in one reader after the other, as long as it is elementwise
and keeps the shape. A prefix of what was taken is fusable where all but its last value are read
inside it alone; the longest such prefix becomes one ``Fused`` node, at the place of its last node:
everything that it reads is computed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Graph, Node, Op, Value

_PRODUCTS = (
    ops.Conv,
    ops.ConvInteger,
    ops.ConvTranspose,
    ops.Gemm,
    ops.MatMul,
    ops.MatMulInteger,
)
_INDEXED_OPS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
"""Of lines with an epilogue, which is computed in float32."""
_POOLS = (ops.MaxPool, ops.AveragePool, ops.GlobalAveragePool, ops.GlobalMaxPool)


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Fuse elementwise ops with what they follow."""

    name: ClassVar[str] = "fuse-epilogues"

    max_stages: int = 12
    """Longest epilogue."""
    pools: bool = True
    """Whether pooling takes an epilogue."""
    gathers: bool = False
    """Whether what picks lines of a table takes one."""
    excluded: tuple[str, ...] = ()
    """Names of ops that are never fused: those for which a backend has no code."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        places = {node: place for place, node in enumerate(graph.nodes)}
        # Products first: what follows them is worth most there. Then pools, then chains.
        kinds = [_PRODUCTS, *[_POOLS] * self.pools, *[(ops.Gather,)] * self.gathers]
        for kind in kinds:
            for node in list(graph.nodes):
                if isinstance(node.op, kind) and len(node.outputs) == 1:
                    notes.extend(self._fuse(graph, node, places))
        for node in list(graph.nodes):
            if self._joins(node) and node in places:
                notes.extend(self._fuse(graph, node, places))
        return PassResult.of(notes)

    def _joins(self, node: Node) -> bool:
        return (
            node.op.elementwise
            and len(node.outputs) == 1
            and isinstance(node.output.type, TensorType)
            and not isinstance(node.op, ops.Fused)
            and node.output.dims is None  # arithmetic of shapes: inference must see through it
            and node.op.name not in self.excluded
        )

    def _fuse(self, graph: Graph, root: Node, places: dict[Node, int]) -> list[Note]:
        if root not in graph.nodes:
            return []
        group, reason = self._grow(graph, root, places)
        notes = [Note.refusal(root.layers, reason)] if reason else []
        if len(group) < 2:
            return notes
        before = tuple(layer for node in group for layer in node.layers)
        fused = _build(graph, group, places)
        chain = " | ".join(type(node.op).__name__ for node in group)
        return [Note(before, fused.layers, chain)]

    def _grow(self, graph: Graph, root: Node, places: dict[Node, int]) -> tuple[list[Node], str]:
        """The nodes to fuse, root first; or the root, and why no reader joins it."""
        group, best = [root], 1
        while len(group) <= self.max_stages:
            reader = _next_reader(group, places)
            if reader is None or not self._fits(root, reader):
                break
            extra = self._side_nodes(graph, root, reader, group)
            group += [*extra, reader]
            if len(group) - 1 <= self.max_stages and _is_closed(graph, group):
                best = len(group)
        if best > 1 or len(group) < 2:
            return group[:best], ""
        return group[:1], _explain_open(graph, root)

    def _fits(self, root: Node, reader: Node) -> bool:
        if not self._joins(reader) or reader.output.tensor.shape != root.output.tensor.shape:
            return False
        if root.op.elementwise:
            return True
        if isinstance(root.op, ops.Gather):
            values = (root.output, reader.output, *(v for v in reader.inputs if v is not None))
            kind = root.output.tensor.dtype
            return kind in _INDEXED_OPS and all(v.tensor.dtype is kind for v in values)
        if reader.output.type != root.output.type and not _counts_bytes(root):
            return False
        return all(_suits_epilogue(root, v) for v in reader.inputs if v is not None)

    def _side_nodes(
        self, graph: Graph, root: Node, reader: Node, group: Sequence[Node]
    ) -> list[Node]:
        """Elementwise nodes whose only reader is ``reader``: the other branches of a tree."""
        if not (root.op.elementwise or _counts_bytes(root)):
            return []
        found: list[Node] = []
        for value in reader.inputs:
            node = None if value is None else value.producer
            if node is None or value is None or node in group or node in found:
                continue
            if not (root.op.elementwise or isinstance(node.op, ops.DequantizeLinear)):
                continue
            alone = all(user is reader for user in value.users) and not graph.is_output(value)
            fed = any(v is not None and v.producer in group for v in node.inputs)
            if alone and not fed and self._fits(root, node):
                found.append(node)
        return found


def _counts_bytes(root: Node) -> bool:
    """Whether the root reads bytes: what follows it becomes floats, and perhaps bytes again."""
    value = root.inputs[0] if root.inputs else None
    if value is None or not isinstance(value.type, TensorType):
        return False
    return value.tensor.dtype in {DType.INT8, DType.UINT8}


def _next_reader(group: Sequence[Node], places: dict[Node, int]) -> Node | None:
    """The first node outside that reads what is computed inside."""
    readers = [u for node in group for u in node.output.users if u not in group]
    return min(readers, key=lambda node: places[node], default=None)


def _is_closed(graph: Graph, group: Sequence[Node]) -> bool:
    """Whether only the last node's result is read from outside."""
    return not any(
        graph.is_output(node.output) or any(user not in group for user in node.output.users)
        for node in group[:-1]
    )


def _explain_open(graph: Graph, root: Node) -> str:
    value = root.output
    if graph.is_output(value):
        return f"{value.name!r} is an output of the network, so nothing is fused after it"
    return f"{value.name!r} has several readers"


def _suits_epilogue(root: Node, value: Value) -> bool:
    """Whether an operand is one number, one for each channel, or one for each element."""
    if not isinstance(value.type, TensorType):
        return False
    full = root.output.tensor
    shape = value.type.shape
    if shape == full.shape:
        return True
    channels = (
        full.rank - 1 if isinstance(root.op, ops.Gemm | ops.MatMul | ops.MatMulInteger) else 1
    )
    offset = full.rank - len(shape)
    return all(d == 1 or offset + i == channels for i, d in enumerate(shape))


def _build(graph: Graph, group: Sequence[Node], places: dict[Node, int]) -> Node:
    """Replace the group by one node at the place of its last one."""
    root, last = group[0], group[-1]
    inputs: list[Value | None] = list(root.inputs)
    numbers = {node.output: -1 - number for number, node in enumerate(group)}
    stages: list[ops.Stage] = []
    for node in group[1:]:
        arguments = [_argument(value, numbers, inputs, len(root.inputs)) for value in node.inputs]
        stages.append(ops.Stage(node.op, tuple(arguments)))
    layers = tuple(dict.fromkeys(layer for node in group for layer in node.layers))
    op: Op = ops.Fused(root.op, len(root.inputs), tuple(stages))
    place = max(places[node] for node in group)
    anchor = next(node for node in group if places[node] == place)
    name = last.output.name
    fused = graph.add(
        op, *inputs, name=root.name, output_names=(name,), before=anchor, layers=layers
    )
    places[fused] = place
    graph.replace_uses(last.output, fused.output)
    for node in sorted(group, key=lambda n: -places[n]):
        graph.remove(node)
        del places[node]
    return fused


def _argument(
    value: Value | None, numbers: dict[Value, int], inputs: list[Value | None], first: int
) -> int:
    if value is not None and value in numbers:
        return numbers[value]
    for index in range(first, len(inputs)):
        if inputs[index] is value:
            return index
    inputs.append(value)
    return len(inputs) - 1
