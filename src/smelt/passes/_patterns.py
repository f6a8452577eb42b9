"""What the passes share that look for what exporters spell out in small ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import InternalError

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value


def layers_between(graph: Graph, last: Node, *sources: Value | None) -> tuple[str, ...]:
    """Layers of the nodes from the sources to ``last`` that nothing else reads."""
    inside = _nodes_between(graph, last, *sources)
    ordered = sorted(inside, key=graph.nodes.index)
    return tuple(dict.fromkeys(layer for node in ordered for layer in node.layers))


def fix_numbers_between(graph: Graph, last: Node, *sources: Value | None) -> None:
    """Fix every number that such nodes read: one node that knows them takes their place."""
    for node in _nodes_between(graph, last, *sources):
        fix_numbers(*(value for value in node.inputs if number_of(value) is not None))


def fix_numbers(*values: Value | None) -> None:
    """Note that a pass has decided by constants: no refit gives them others."""
    for value in values:
        if value is not None and value.constant is not None:
            for source in value.constant.sources():
                source.is_fixed = True


def _nodes_between(graph: Graph, last: Node, *sources: Value | None) -> list[Node]:
    inside, pending = [last], [last]
    while pending:
        for value in pending.pop().inputs:
            if value is None or any(value is source for source in sources):
                continue
            node = value.producer
            if node is None or node in inside:
                continue
            if not graph.is_output(value) and all(user in inside for user in value.users):
                inside.append(node)
                pending.append(node)
    return inside


def required_input(node: Node, index: int) -> Value:
    """Input ``index``, which every node of the op has. Raises InternalError: it is absent."""
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"input {index} of {node} is missing")
    return value


def number_of(value: Value | None) -> float | None:
    """The one number that a constant holds."""
    if value is None or value.constant is None or value.constant.array.size != 1:
        return None
    return float(value.constant.array.ravel()[0])


def made_by(value: Value | None, kind: type[Op]) -> Node | None:
    """What makes the value, if it is of a kind."""
    node = None if value is None else value.producer
    return node if node is not None and isinstance(node.op, kind) else None
