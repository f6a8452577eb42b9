"""Half precision computed in float32.

CPUs without arithmetic in half precision convert at every operation; converting once, weights at
build time and activations at the network's bounds, is faster and no less exact.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt import ops
from smelt.ir import Constant, FreshNames
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value


@dataclass(frozen=True)
class PromoteHalf(Pass):
    """Compute float16 tensors in float32; inputs and outputs of the network keep their type."""

    name: ClassVar[str] = "promote-half"

    @override
    def apply(self, graph: Graph) -> PassResult:
        halves = {v for v in graph.values() if _is_half(v)}
        layers = [n.layers for n in graph.nodes if any(v in halves for v in n.outputs)]
        if not halves or not _needs_promotion(graph, halves):
            return PassResult(modified=False)
        _Promotion(graph, halves).run()
        notes = tuple(Note(one, one, "computed in float32") for one in layers)
        return PassResult(modified=True, notes=notes)


def _is_half(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT16


def _needs_promotion(graph: Graph, halves: set[Value]) -> bool:
    """Whether anything but casts at the network's bounds is in half precision."""
    return any(
        any(v is not None and v in halves for v in (*node.inputs, *node.outputs))
        and not _is_bound(graph, node)
        for node in graph.nodes
    )


def _is_bound(graph: Graph, node: Node) -> bool:
    """Whether the node only converts at a bound of the network or of a region."""
    if not isinstance(node.op, ops.Cast) or node.inputs[0] is None:
        return bool(node.op.regions)
    source, made = node.inputs[0], node.output
    region = source.producer is not None and bool(source.producer.op.regions)
    if _is_half(source):
        return made.tensor.dtype is DType.FLOAT32 and (source in graph.inputs or region)
    return all(user.op.regions for user in made.users)


class _Promotion:
    """One promotion of one graph. A region keeps its types, so its node gets casts on all sides."""

    def __init__(self, graph: Graph, halves: set[Value]) -> None:
        self._graph = graph
        self._halves = halves
        self._names = FreshNames(graph)
        self._wide: dict[Value, Value] = {}
        """What stands for an input, a constant or a region's result of half precision."""

    def run(self) -> None:
        graph = self._graph
        first = graph.nodes[0] if graph.nodes else None
        nodes = list(graph.nodes)
        for value in graph.inputs:
            if _is_half(value) and value.users:
                self._wide[value] = self._cast(value, DType.FLOAT32, first)
        for node in nodes:
            if node.op.regions:
                self._surround(node, nodes)
            else:
                self._promote(node)
        for value in dict.fromkeys(graph.outputs):
            if value in self._halves and not _is_half(value):
                self._restore(value)

    def _cast(self, value: Value, to: DType, before: Node | None) -> Value:
        name = self._names.make(f"{value.name}/{to.value}")
        layers = value.producer.layers if value.producer else (name,)
        cast = ops.Cast(to)
        return self._graph.add(cast, value, name=name, before=before, layers=layers).output

    def _promote(self, node: Node) -> None:
        for index, value in enumerate(list(node.inputs)):
            if value is not None and _is_half(value):
                self._graph.set_input(node, index, self._widened(value))
        node.op = _promoted_op(node.op)
        node.infer()

    def _widened(self, value: Value) -> Value:
        if value not in self._wide and value.constant is not None:
            name = self._names.make(f"{value.name}/float32")
            wide = Constant.derive(name, ops.Cast(DType.FLOAT32), value.constant)
            self._wide[value] = self._graph.add_constant(wide)
        return self._wide.get(value, value)

    def _surround(self, node: Node, nodes: list[Node]) -> None:
        for index, value in enumerate(list(node.inputs)):
            if value is not None and value in self._halves and not _is_half(value):
                self._graph.set_input(node, index, self._cast(value, DType.FLOAT16, node))
        place = nodes.index(node) + 1
        after = nodes[place] if place < len(nodes) else None
        for value in node.outputs:
            if _is_half(value) and value.users:
                self._wide[value] = self._cast(value, DType.FLOAT32, after)

    def _restore(self, value: Value) -> None:
        """Give an output of the network its type and name back."""
        narrow = self._cast(value, DType.FLOAT16, None)
        self._graph.outputs = [narrow if v is value else v for v in self._graph.outputs]
        value.name, narrow.name = narrow.name, value.name


def _promoted_op(op: Op) -> Op:
    """The op with every attribute that says float16 saying float32."""
    changes = {
        field.name: DType.FLOAT32
        for field in dataclasses.fields(op)
        if getattr(op, field.name) is DType.FLOAT16
    }
    return dataclasses.replace(op, **changes) if changes else op
