"""The two nodes that a chain stands for, as families of single nodes know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.errors import InternalError
from smelt.ir import Graph
from smelt.ops.chain import Chain

if TYPE_CHECKING:
    from smelt.ir import Node, Value


@dataclass(frozen=True, slots=True)
class Links:
    """The two nodes that a chain stands for."""

    first: Node
    second: Node
    keeps: bool
    """Whether what is between them is a result of the chain, too."""


def links_of(node: Node) -> Links | None:
    """The nodes of a chain, in a graph of their own; None for any other op."""
    if not isinstance(node.op, Chain):
        return None
    graph, count = Graph(node.name), node.op.first_inputs

    def place(value: Value | None) -> Value | None:
        if value is None:
            return None
        if value.constant is not None:
            return graph.add_constant(value.constant)
        return graph.add_input(value.name, value.type)

    inputs = [place(value) for value in node.inputs]
    first = graph.add(node.op.first, *inputs[:count], name=f"{node.name}/first")
    second = graph.add(node.op.second, first.output, *inputs[count:], name=node.name)
    graph.outputs.append(second.output)
    return Links(first, second, node.op.keeps)


def links_in(node: Node) -> Links:
    """The nodes of a chain that has tactics."""
    links = links_of(node)
    if links is None:
        raise InternalError(f"{node} is no chain")
    return links
