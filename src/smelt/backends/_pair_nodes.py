"""The two nodes of a fused pair, in a form that the families of single nodes accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.backends._fused_programs import op_as
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


def pair_nodes_of(node: Node) -> PairNodes:
    """Return the two nodes of a fused pair, in a graph of their own.

    Raises:
        InternalError: the node is no fused pair.
    """
    op, graph = op_as(FusedPair, node), Graph(node.name)
    count = op.first_inputs

    def add_input_for(value: Value | None) -> Value | None:
        if value is None:
            return None
        if value.constant is not None:
            return graph.add_constant(value.constant, value.name)
        return graph.add_input(value.name, value.type)

    inputs = [add_input_for(value) for value in node.inputs]
    first = graph.add(op.first, *inputs[:count], name=f"{node.name}/first")
    second = graph.add(op.second, first.output, *inputs[count:], name=node.name)
    graph.outputs.append(second.output)
    return PairNodes(first, second, op.returns_intermediate)
