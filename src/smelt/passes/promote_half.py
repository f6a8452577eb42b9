"""Compute float16 networks in float32.

CPUs without float16 arithmetic convert at every operation. Converting once (weights at build time,
activations at the inputs and outputs of the network) is faster and no less accurate.
"""

from __future__ import annotations

import dataclasses

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import Constant, FreshNames, Graph, Node, Op, Value
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import DType, TensorType, override


class PromoteHalf(Pass):
    """Compute float16 tensors in float32; inputs and outputs of the network keep their type."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        halves = {v for v in graph.values() if _is_half(v)}
        layers = [n.layers for n in graph.nodes if any(v in halves for v in n.outputs)]
        if not halves or not _needs_promotion(graph, halves):
            return PassResult(modified=False)
        _Promotion(graph, halves).run()
        notes = tuple(Note(names, names, "computed in float32") for names in layers)
        return PassResult(modified=True, notes=notes)


def _is_half(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT16


def _needs_promotion(graph: Graph, halves: set[Value]) -> bool:
    """Return whether anything but casts at the network's boundary uses float16."""
    return any(
        any(v is not None and v in halves for v in (*node.inputs, *node.outputs))
        and not _is_boundary_cast(graph, node)
        for node in graph.nodes
    )


def _is_boundary_cast(graph: Graph, node: Node) -> bool:
    """Return whether a node only converts where it must: at a boundary, or where it is asked to."""
    if not isinstance(node.op, ops.Cast) or node.inputs[0] is None:
        return bool(node.op.regions)
    source, result = node.inputs[0], node.output
    producer = source.producer
    if _is_half(source):
        is_kept = producer is not None and (bool(producer.op.regions) or _is_narrowing(producer))
        return result.tensor.dtype is DType.FLOAT32 and (source in graph.inputs or is_kept)
    return all(user.op.regions or _widens(user) for user in result.users)


def _widens(node: Node) -> bool:
    return isinstance(node.op, ops.Cast) and node.op.to is DType.FLOAT32


def _is_narrowing(node: Node) -> bool:
    """Return whether a node is the network's own Cast of a wider type to float16.

    It stays: the network relies on its rounding, and on its infinities beyond 65504.
    """
    source = node.inputs[0] if isinstance(node.op, ops.Cast) else None
    return source is not None and not _is_half(source) and _is_half(node.output)


class _Promotion:
    """Promotion of one graph from float16 to float32.

    Regions keep their types, so a node with regions gets casts on all inputs and outputs.
    """

    def __init__(self, graph: Graph, halves: set[Value]) -> None:
        self._graph = graph
        self._halves = halves
        self._names = FreshNames(graph)
        self._wide: dict[Value, Value] = {}
        """The float32 replacements of float16 inputs, constants and results of nodes with regions.
        """

    def run(self) -> None:
        """Promote all nodes of the graph."""
        graph = self._graph
        first = graph.nodes[0] if graph.nodes else None
        nodes = list(graph.nodes)
        for value in graph.inputs:
            if _is_half(value) and value.users:
                self._wide[value] = self._cast(value, DType.FLOAT32, first)
        for node, after in zip(nodes, [*nodes[1:], None], strict=True):
            if node.op.regions:
                self._cast_around(node, after)
            elif _is_narrowing(node) and node.inputs[0] not in self._halves:
                self._wide[node.output] = self._cast(node.output, DType.FLOAT32, after)
            elif not self._promote(node):
                self._cast_around(node, after)
        for value in dict.fromkeys(graph.outputs):
            if value in self._halves and not _is_half(value):
                self._restore(value)

    def _cast(self, value: Value, to: DType, before: Node | None) -> Value:
        """Add a Cast and return its result."""
        name = self._names.make(f"{value.name}/{to.value}")
        layers = value.producer.layers if value.producer else (name,)
        cast = ops.Cast(to)
        return self._graph.add(cast, value, name=name, before=before, layers=layers).output

    def _promote(self, node: Node) -> bool:
        """Let a node read, compute and return float32; return whether its op takes that."""
        inputs, op = list(node.inputs), node.op
        for index, value in enumerate(inputs):
            if value is not None and _is_half(value):
                self._graph.set_input(node, index, self._widened(value))
        node.op = _promoted_op(op)
        try:
            node.infer()
        except ShapeError:  # an op of the user that is made for float16
            for index, value in enumerate(inputs):
                self._graph.set_input(node, index, value)
            node.op = op
            return False
        return True

    def _widened(self, value: Value) -> Value:
        """Return the float32 replacement of a value, deriving it if the value is constant."""
        if value not in self._wide and value.constant is not None:
            name = self._names.make(f"{value.name}/float32")
            wide = Constant.derive(name, ops.Cast(DType.FLOAT32), value.constant)
            self._wide[value] = self._graph.add_constant(wide)
        return self._wide.get(value, value)

    def _cast_around(self, node: Node, after: Node | None) -> None:
        """Cast the inputs and results of a node with regions."""
        for index, value in enumerate(list(node.inputs)):
            if value is not None and value in self._halves and not _is_half(value):
                self._graph.set_input(node, index, self._cast(value, DType.FLOAT16, node))
        for value in node.outputs:
            if _is_half(value) and value.users:
                self._wide[value] = self._cast(value, DType.FLOAT32, after)

    def _restore(self, value: Value) -> None:
        """Cast an output of the network back to float16 and give it its name back."""
        narrow = self._cast(value, DType.FLOAT16, None)
        self._graph.outputs = [narrow if v is value else v for v in self._graph.outputs]
        value.name, narrow.name = narrow.name, value.name


def _promoted_op(op: Op) -> Op:
    """Return an op with all attributes of value float16 set to float32."""
    changes = {
        field.name: DType.FLOAT32
        for field in dataclasses.fields(op)
        if getattr(op, field.name) is DType.FLOAT16
    }
    return dataclasses.replace(op, **changes) if changes else op
