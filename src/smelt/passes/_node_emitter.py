"""Nodes and constants that replace a node: what can be known at build time becomes a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.ir import Constant, FreshNames, Value, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Array, Graph, Node, Op


class Emitter:
    """Puts ops in the place of one node; each has the node's layers.

    An op whose inputs are all constants becomes a constant derived from them, with its recipe:
    whoever writes a rewrite writes it once, for weights that are known and for weights that are
    not.
    """

    def __init__(self, graph: Graph, node: Node, names: FreshNames | None = None) -> None:
        self._graph = graph
        self._node = node
        self._names = names or FreshNames(graph)
        self._layers = node.layers
        self._made: list[Node] = []

    def op(self, op: Op, *inputs: Value | None, hint: str = "") -> Value:
        """The first result of ``op`` on ``inputs``."""
        name = self._names.make(f"{self._node.name}/{hint or op.name}")
        constants = [None if v is None else v.constant for v in inputs]
        known = [v is None or v.constant is not None for v in inputs]
        if inputs and all(known):
            return self._graph.add_constant(Constant.derive(name, op, *constants))
        made = self._graph.add(op, *inputs, name=name, before=self._node, layers=self._layers)
        self._made.append(made)
        return made.output

    def floats(self, value: float | Sequence[float], like: Value, hint: str = "value") -> Value:
        """A constant of the element type of ``like``."""
        return self.array(np.asarray(value, like.tensor.dtype.numpy), hint)

    def integers(self, *values: int, hint: str = "sizes") -> Value:
        """A constant vector of int64."""
        return self.array(np.asarray(values, np.int64), hint)

    def array(self, array: Array, hint: str = "value") -> Value:
        """A constant."""
        return self._graph.add_constant(array, self._names.make(f"{self._node.name}/{hint}"))

    def discard(self) -> None:
        """Take back every op that was put in."""
        while self._made:
            self._graph.remove(self._made.pop())

    def finish(self, result: Value) -> Node | None:
        """Let ``result`` take the place of the node's first result; returns what makes it.

        The node must have no other result in use. What makes ``result`` takes the node's name.
        """
        graph, node = self._graph, self._node
        if not substitute(graph, node.output, result):
            return None
        producer = result.producer
        graph.remove(node)
        if producer is not None and any(producer is made for made in self._made):
            if not graph.is_output(result):
                result.name = node.output.name
            producer.name = node.name
        return producer
