"""Delta debugging over the nodes of a network, to find the smallest part that still fails.

The inputs of a part are the values that the references compute in the whole network, so any set of
nodes can run as a network of its own.

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.interp import interpret
from smelt.ir import Constant, Graph, Value
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.ir import Array, Node

_MAX_TRIALS: Final = 200
"""Largest number of parts that are tried."""
_SHAPE_ELEMENTS: Final = 64
"""Largest size of an integer vector that is taken for a shape or a list of axes.

Such a vector stays a constant of the part, because ops may need its values when they are built.
"""

Part = tuple[Graph, dict[str, "Array"]]
"""A part as a network, and its inputs by name."""


def reduce_graph(
    graph: Graph, inputs: Mapping[str, Array], fails: Callable[[Graph, Mapping[str, Array]], bool]
) -> Part | None:
    """Return the smallest failing part with its inputs; None if the whole network does not fail.

    Args:
        graph: the network, with fixed shapes.
        inputs: inputs on which it fails.
        fails: returns whether a network fails on inputs.
    """
    recorder = _ResultRecorder()
    interpret(graph, inputs, listeners=[recorder])
    values = recorder.arrays | {v: np.asarray(inputs[v.name]) for v in graph.inputs}
    nodes = [node for node in graph.nodes if node.output in values]
    trials = 0

    def part_fails(chosen: Sequence[Node]) -> bool:
        nonlocal trials
        trials += 1
        if trials > _MAX_TRIALS or not chosen:
            return False
        return fails(*cut_part(graph, chosen, values))

    if not part_fails(nodes):
        return None
    return cut_part(graph, _smallest(nodes, part_fails), values)


class _ResultRecorder:
    """Listener of the interpreter that stores every result."""

    def __init__(self) -> None:
        self.arrays: dict[Value, Array] = {}

    def will_run(self, node: Node, inputs: Sequence[Array | None], /) -> None:
        """Do nothing: results are stored after a node has run."""
        del node, inputs

    def did_run(self, node: Node, outputs: Sequence[Array], /) -> None:
        """Store the results of a node."""
        self.arrays.update(zip(node.outputs, outputs, strict=False))


def _smallest(nodes: list[Node], fails: Callable[[Sequence[Node]], bool]) -> list[Node]:
    """Return a failing list from which no chunk can be removed, as far as the trials show."""
    num_chunks = 2
    while len(nodes) > 1:
        chunks = _cut(nodes, num_chunks)
        failing = next((chunk for chunk in chunks if fails(chunk)), None)
        if failing is not None:
            nodes, num_chunks = failing, 2
            continue
        complements: list[list[Node]] = []
        if num_chunks > 2:  # with two chunks, each is the complement of the other
            complements = [[n for n in nodes if n not in chunk] for chunk in chunks]
        failing = next((part for part in complements if fails(part)), None)
        if failing is not None:
            nodes, num_chunks = failing, max(num_chunks - 1, 2)
        elif num_chunks >= len(nodes):
            break
        else:
            num_chunks = min(2 * num_chunks, len(nodes))
    return nodes


def _cut(nodes: Sequence[Node], num_chunks: int) -> list[list[Node]]:
    bounds = [len(nodes) * i // num_chunks for i in range(num_chunks + 1)]
    return [list(nodes[a:b]) for a, b in pairwise(bounds) if a < b]


def cut_part(graph: Graph, nodes: Sequence[Node], values: Mapping[Value, Array]) -> Part:
    """Return nodes of a graph as a network of their own, with its inputs.

    Args:
        graph: the whole network.
        nodes: nodes of the part, in the order of execution.
        values: values that were computed in the whole network.
    """
    part = Graph(f"part of {graph.name}")
    own = set(nodes)
    copies: dict[Value, Value] = {}
    inputs: dict[str, Array] = {}

    def take(value: Value | None) -> Value | None:
        if value is None:
            return None
        if value not in copies:
            copies[value] = _add_operand(part, value, values, inputs)
        return copies[value]

    for node in nodes:
        copy = part.add(
            node.op,
            *[take(value) for value in node.inputs],
            name=node.name,
            output_names=[value.name for value in node.outputs],
            layers=node.layers,
        )
        copies.update(zip(node.outputs, copy.outputs, strict=True))
    part.symbol_bounds = dict(graph.symbol_bounds)
    part.outputs = [
        copies[value]
        for node in nodes
        for value in node.outputs
        if not value.users or graph.is_output(value) or any(user not in own for user in value.users)
    ]
    return part, inputs


def _add_operand(
    part: Graph, value: Value, values: Mapping[Value, Array], inputs: dict[str, Array]
) -> Value:
    """Add a value from outside the part as a constant or as an input, and return it."""
    if value.constant is not None:
        return part.add_constant(value.constant, value.name)
    array = values[value]
    if array.dtype.kind == "i" and array.ndim <= 1 and array.size <= _SHAPE_ELEMENTS:
        return part.add_constant(Constant(value.name, array))
    inputs[value.name] = array
    return part.add_input(value.name, TensorType(DType.from_numpy(array.dtype), array.shape))
