"""Local rewrites, and copies of graphs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from smelt.ir._graph import Graph, Node, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smelt.ir._op import Op

MatchT = TypeVar("MatchT")


@dataclass(frozen=True, slots=True)
class Rewrite(Generic[MatchT]):
    """A local rewrite: what it looks for, whether it may, and what it puts there."""

    match: Callable[[Graph, Node], MatchT | None]
    """What was found around the node; None when this is not the pattern."""
    replace: Callable[[Graph, Node, MatchT], Node | Value | None]
    """Change the graph. Returns what stands for the node now."""
    check: Callable[[Graph, Node, MatchT], str | None] = lambda _graph, _node, _match: None
    """Why the pattern may not be replaced although it is there; None when it may."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a rewrite did, or why it did not."""

    before: tuple[str, ...]
    """Layers of the node that was looked at."""
    after: tuple[str, ...]
    """Layers of the node that took its place; empty when it is gone or stayed as it was."""
    refusal: str | None = None


def apply_rewrite(graph: Graph, rewrite: Rewrite[MatchT]) -> list[Change]:
    """Try a rewrite once on every node, in order; dead nodes are left for ``remove_unused``."""
    changes: list[Change] = []
    for node in list(graph.nodes):
        if node.outputs and not any(v.users or graph.is_output(v) for v in node.outputs):
            continue
        match = rewrite.match(graph, node)
        if match is None:
            continue
        before = node.layers
        refusal = rewrite.check(graph, node, match)
        if refusal is not None:
            changes.append(Change(before, (), refusal))
            continue
        made = rewrite.replace(graph, node, match)
        changes.append(Change(before, made.layers if isinstance(made, Node) else ()))
    return changes


def sole_user(graph: Graph, value: Value) -> Node | None:
    """The one node that reads the value, if there is one alone and the value is not an output."""
    if len(value.users) != 1 or graph.is_output(value):
        return None
    return value.users[0]


def can_substitute(graph: Graph, old: Value, new: Value) -> bool:
    """Whether ``new`` can stand for ``old`` everywhere without changing the outputs' names."""
    if not graph.is_output(old):
        return True
    return new.producer is not None and not graph.is_output(new)


def substitute(graph: Graph, old: Value, new: Value) -> bool:
    """Make every reader of ``old`` read ``new``, which keeps the name if it is now an output.

    Returns whether it was possible: an input, a constant or another output cannot take an output's
    name.
    """
    if not can_substitute(graph, old, new):
        return False
    renamed = graph.is_output(old)
    graph.replace_uses(old, new)
    if renamed:
        old.name, new.name = new.name, old.name
    return True


def remove_dead(graph: Graph, values: Iterable[Value | None]) -> None:
    """Remove what made the values, and what made that, as far as nothing else needs it."""
    pending = [v.producer for v in values if v is not None and v.producer is not None]
    while pending:
        node = pending.pop()
        gone = not node.outputs or node not in graph.nodes
        if gone or any(v.users or graph.is_output(v) for v in node.outputs):
            continue
        pending.extend(v.producer for v in node.inputs if v is not None and v.producer is not None)
        graph.remove(node)


class FreshNames:
    """Names that no node or value of a graph has yet."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {value.name for value in graph.values()}
        self._taken.update(node.name for node in graph.nodes)

    def make(self, wanted: str) -> str:
        """``wanted``, or it with the first free number behind."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def clone(graph: Graph) -> Graph:
    """A copy that shares nothing but ops and constants, so that either can be rewritten."""
    copies: dict[Value, Value] = {}

    def copy(value: Value) -> Value:
        if value not in copies:
            copies[value] = Value(value.name, value.type, constant=value.constant, dims=value.dims)
        return copies[value]

    result = Graph(graph.name, symbol_bounds=dict(graph.symbol_bounds), guards=graph.guards)
    result.inputs = [copy(value) for value in graph.inputs]
    for node in graph.nodes:
        inputs = [value and copy(value) for value in node.inputs]
        twin = Node(
            node.name, _clone_regions(node.op), inputs, layers=node.layers, guards=node.guards
        )
        for value in inputs:
            if value is not None:
                value.users.append(twin)
        twin.outputs = [copy(value) for value in node.outputs]
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
