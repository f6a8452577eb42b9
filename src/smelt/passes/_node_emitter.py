"""``NodeEmitter``: adds the nodes that replace a node, and folds those with constant inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt import ops
from smelt.ir import Array, Constant, FreshNames, Graph, Node, Op, Value, remove_dead, substitute
from smelt.passes._base import Note


class NodeEmitter:
    """Adds ops in place of one node; the new nodes have the layers of that node.

    An op whose inputs are all constant becomes a constant that is derived from them and keeps the
    recipe. One rewrite rule thereby covers both constant and computed weights.
    """

    def __init__(self, graph: Graph, node: Node, names: FreshNames) -> None:
        self._graph = graph
        self.node = node
        self._names = names
        self._added: list[Node] = []

    def op(self, op: Op, *inputs: Value | None, hint: str = "") -> Value:
        """Add an op, or fold it, and return its first result."""
        name = self._names.make(f"{self.node.name}/{hint or op.name}")
        constants = [None if v is None else v.constant for v in inputs]
        known = [v is None or v.constant is not None for v in inputs]
        if inputs and all(known):
            return self._graph.add_constant(Constant.derive(name, op, *constants))
        node = self._graph.add(op, *inputs, name=name, before=self.node, layers=self.node.layers)
        self._added.append(node)
        return node.output

    def floats(self, value: float | Sequence[float], like: Value, hint: str = "value") -> Value:
        """Return a constant with the element type of ``like``."""
        return self.array(np.asarray(value, like.tensor.dtype.numpy), hint)

    def integers(self, *values: int, hint: str = "sizes") -> Value:
        """Return a constant int64 vector."""
        return self.array(np.asarray(values, np.int64), hint)

    def array(self, array: Array, hint: str = "value") -> Value:
        """Return a constant with the elements of ``array``."""
        return self._graph.add_constant(array, self._names.make(f"{self.node.name}/{hint}"))

    def spread(self, vector: Value, trailing_axes: int) -> Value:
        """Return a vector reshaped to broadcast along an axis that others follow."""
        if not trailing_axes:
            return vector
        return self.op(ops.Reshape(), vector, self.integers(-1, *[1] * trailing_axes))

    def discard(self) -> None:
        """Remove every node that was added."""
        while self._added:
            self._graph.remove(self._added.pop())

    def finish(self, result: Value) -> Node | None:
        """Replace the node's first result by ``result`` and return the node that computes it.

        The node must have no other result in use. If ``result`` is computed by an added node, that
        node takes the replaced node's name. Returns None if the replacement is not possible, or if
        ``result`` has no producer.
        """
        graph, node = self._graph, self.node
        if not substitute(graph, node.output, result):
            return None
        producer = result.producer
        graph.remove(node)
        if producer is not None and any(producer is added for added in self._added):
            if not graph.is_output(result):
                result.name = node.output.name
            producer.name = node.name
        return producer

    def finish_as(self, result: Value, layers: tuple[str, ...], detail: str) -> Note | None:
        """Replace the node as ``finish`` does, by a node that has the given layers.

        The nodes before it that nothing else reads are removed.
        """
        inputs = list(self.node.inputs)
        producer = self.finish(result)
        if producer is None:
            return None
        producer.layers = layers
        remove_dead(self._graph, inputs)
        return Note(layers, layers, detail)
