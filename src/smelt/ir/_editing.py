"""Changes to a graph: substituted values, removed nodes, fresh names, and copies of graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from smelt.ir._graph import Graph, Node, Value

if TYPE_CHECKING:
    from smelt.ir._op import Op


def sole_user(graph: Graph, value: Value) -> Node | None:
    """Return the only node that reads a value; None for an output or several readers."""
    if len(value.users) != 1 or graph.is_output(value):
        return None
    return value.users[0]


def can_substitute(graph: Graph, old: Value, new: Value) -> bool:
    """Return whether ``new`` can replace ``old`` without changing the names of outputs."""
    if not graph.is_output(old):
        return True
    return new.producer is not None and not graph.is_output(new)


def substitute(graph: Graph, old: Value, new: Value) -> bool:
    """Replace ``old`` by ``new`` everywhere; if ``old`` is an output, ``new`` takes its name.

    Returns False, without a change, if ``new`` would have to take the name of an output but is an
    input, a constant or an output itself.
    """
    if not can_substitute(graph, old, new):
        return False
    renamed = graph.is_output(old)
    graph.replace_uses(old, new)
    if renamed:
        old.name, new.name = new.name, old.name
    return True


def remove_dead(graph: Graph, values: Iterable[Value | None]) -> None:
    """Remove the producers of values, and recursively their producers, if they are unused."""
    pending = [v.producer for v in values if v is not None and v.producer is not None]
    while pending:
        node = pending.pop()
        is_removed = not node.outputs or node not in graph.nodes
        if is_removed or any(v.users or graph.is_output(v) for v in node.outputs):
            continue
        pending.extend(v.producer for v in node.inputs if v is not None and v.producer is not None)
        graph.remove(node)


class FreshNames:
    """Generator of names that no node or value of a graph has yet."""

    def __init__(self, graph: Graph, reserved: Iterable[str] = ()) -> None:
        self._taken = {value.name for value in graph.values()}
        self._taken.update((node.name for node in graph.nodes), reserved)

    def make(self, wanted: str) -> str:
        """Return ``wanted``, with the lowest free number as a suffix if the name is taken."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def clone(graph: Graph) -> Graph:
    """Copy a graph with its regions; only constants and ops without regions are shared."""
    copies: dict[Value, Value] = {}

    def copy(value: Value) -> Value:
        if value not in copies:
            copies[value] = dataclasses.replace(value, producer=None, users=[])
        return copies[value]

    result = Graph(graph.name, symbol_bounds=dict(graph.symbol_bounds), guards=graph.guards)
    result.inputs = [copy(value) for value in graph.inputs]
    for node in graph.nodes:
        inputs = [value and copy(value) for value in node.inputs]
        outputs = [copy(value) for value in node.outputs]
        op = _clone_regions(node.op)
        twin = dataclasses.replace(node, op=op, inputs=inputs, outputs=outputs)
        for value in inputs:
            if value is not None:
                value.users.append(twin)
        for value in twin.outputs:
            value.producer = twin
        result.nodes.append(twin)
    result.outputs = [copy(value) for value in graph.outputs]
    return result


def _clone_regions(op: Op) -> Op:
    if not op.regions:
        return op
    fields = {f.name: getattr(op, f.name) for f in dataclasses.fields(op)}
    regions = {name: clone(value) for name, value in fields.items() if isinstance(value, Graph)}
    return dataclasses.replace(op, **regions)
