"""What the passes share that look for what exporters spell out in small ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Op, Value


def layers_between(graph: Graph, last: Node, *sources: Value | None) -> tuple[str, ...]:
    """Layers of the nodes from the sources to ``last`` that nothing else reads."""
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
    ordered = sorted(inside, key=graph.nodes.index)
    return tuple(dict.fromkeys(layer for node in ordered for layer in node.layers))


def number_of(value: Value | None) -> float | None:
    """The one number that a constant holds."""
    if value is None or value.constant is None or value.constant.array.size != 1:
        return None
    return float(value.constant.array.ravel()[0])


def made_by(value: Value | None, kind: type[Op]) -> Node | None:
    """What makes the value, if it is of a kind."""
    node = None if value is None else value.producer
    return node if node is not None and isinstance(node.op, kind) else None
