"""Helpers for passes that recognise subgraphs, such as ops that exporters decompose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import InternalError
from smelt.ir import fix_numbers

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value


def layers_between(graph: Graph, last: Node, *sources: Value | None) -> tuple[str, ...]:
    """Return the layers of ``last`` and its private ancestors up to ``sources``.

    Private ancestors are nodes that only nodes of this set read.
    """
    nodes = _nodes_between(graph, last, *sources)
    ordered = sorted(nodes, key=graph.nodes.index)
    return tuple(dict.fromkeys(layer for node in ordered for layer in node.layers))


def fix_numbers_between(graph: Graph, last: Node, *sources: Value | None) -> None:
    """Fix all scalar constants that the nodes between ``sources`` and ``last`` read.

    The node that replaces them depends on the values of these constants.
    """
    for node in _nodes_between(graph, last, *sources):
        fix_numbers(*(value for value in node.inputs if number_of(value) is not None))


def _nodes_between(graph: Graph, last: Node, *sources: Value | None) -> list[Node]:
    """Return ``last`` and its ancestors up to ``sources`` that only these nodes read."""
    nodes, pending = [last], [last]
    while pending:
        for value in pending.pop().inputs:
            if value is None or any(value is source for source in sources):
                continue
            node = value.producer
            if node is None or node in nodes:
                continue
            if not graph.is_output(value) and all(user in nodes for user in value.users):
                nodes.append(node)
                pending.append(node)
    return nodes


def required_input(node: Node, index: int) -> Value:
    """Return input ``index`` of a node.

    Raises:
        InternalError: the input is absent.
    """
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"input {index} of {node} is missing")
    return value


def number_of(value: Value | None) -> float | None:
    """Return the element of a constant with one element; None for other values."""
    if value is None or value.constant is None or value.constant.array.size != 1:
        return None
    return float(value.constant.array.ravel()[0])


def producer_of_kind(value: Value | None, kind: type[Op]) -> Node | None:
    """Return the node that computes a value if its op is of class ``kind``, or None."""
    node = None if value is None else value.producer
    return node if node is not None and isinstance(node.op, kind) else None
