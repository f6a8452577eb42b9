"""The two nodes of a fused pair, in a form that the families of single nodes accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.errors import InternalError
from smelt.ir import Graph
from smelt.ops import FusedPair

if TYPE_CHECKING:
    from smelt.ir import Node, Value


@dataclass(frozen=True, slots=True)
class PairNodes:
    """The two nodes of a fused pair."""

    first: Node
    second: Node
    returns_intermediate: bool
    """Whether the intermediate between the two nodes is also a result of the pair."""


def find_pair_nodes(node: Node) -> PairNodes | None:
    """Return the two nodes of a fused pair, in a graph of their own; None for any other op."""
    if not isinstance(node.op, FusedPair):
        return None
    graph, count = Graph(node.name), node.op.first_inputs

    def add_input_for(value: Value | None) -> Value | None:
        if value is None:
            return None
        if value.constant is not None:
            return graph.add_constant(value.constant)
        return graph.add_input(value.name, value.type)

    inputs = [add_input_for(value) for value in node.inputs]
    first = graph.add(node.op.first, *inputs[:count], name=f"{node.name}/first")
    second = graph.add(node.op.second, first.output, *inputs[count:], name=node.name)
    graph.outputs.append(second.output)
    return PairNodes(first, second, node.op.returns_intermediate)


def pair_nodes_of(node: Node) -> PairNodes:
    """Return the two nodes of a fused pair. Raises InternalError for any other op."""
    pair_nodes = find_pair_nodes(node)
    if pair_nodes is None:
        raise InternalError(f"{node} is not a fused pair")
    return pair_nodes
