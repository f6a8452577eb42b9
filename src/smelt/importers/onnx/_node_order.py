"""Topological order of the nodes of an ONNX graph."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from onnx import AttributeProto

from smelt.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, NodeProto


def order_nodes(
    nodes: Sequence[NodeProto], existing_names: Iterable[str], where: str
) -> list[NodeProto]:
    """Return the nodes in topological order, which keeps the given order where it is valid.

    ``existing_names`` are the names that exist before the first node.

    Raises:
        GraphError: two nodes compute the same result, or there is a cycle.
    """
    producers = _producers(nodes, set(existing_names), where)
    readers: list[list[int]] = [[] for _ in nodes]
    missing_inputs = [0] * len(nodes)
    for index, node in enumerate(nodes):
        for producer in {producers[name] for name in names_read(node) if name in producers}:
            readers[producer].append(index)
            missing_inputs[index] += 1
    ready = [index for index, count in enumerate(missing_inputs) if count == 0]
    order: list[NodeProto] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            missing_inputs[reader] -= 1
            if missing_inputs[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        cycle = [describe(nodes[index]) for index in _cycle(nodes, producers, missing_inputs)]
        raise GraphError(
            f"{where} has a cycle: {' -> '.join((cycle + cycle[:1])[:8])}"
            f"{' …' if len(cycle) > 7 else ''}; a node must not depend on its own results"
        )
    return order


def _cycle(
    nodes: Sequence[NodeProto], producers: Mapping[str, int], missing_inputs: Sequence[int]
) -> list[int]:
    """Return the nodes of one cycle, each before a node that reads its result."""
    index = next(index for index, count in enumerate(missing_inputs) if count)
    positions: dict[int, int] = {}
    while index not in positions:
        positions[index] = len(positions)
        inputs = (producers[name] for name in names_read(nodes[index]) if name in producers)
        index = next(producer for producer in inputs if missing_inputs[producer])
    return list(positions)[positions[index] :][::-1]


def names_read(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including those that its regions capture."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from _names_captured(attribute.g)


def describe(node: NodeProto) -> str:
    """Return the node as shown in messages: by its name, or by its first result."""
    label = node.name or next((name for name in node.output if name), "")
    return f"{node.op_type} {label!r}" if label else f"{node.op_type} without a name"


def _producers(nodes: Sequence[NodeProto], existing_names: set[str], where: str) -> dict[str, int]:
    """Return the index of the node that computes each name.

    Raises:
        GraphError: a name is computed twice, or is that of an input or weight.
    """
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producers or name in existing_names:
                first = (
                    f"a result of {describe(nodes[producers[name]])}"
                    if name in producers
                    else "an input or weight"
                )
                raise GraphError(
                    f"{where} has the name {name!r} twice: as {first}, and as a result of "
                    f"{describe(node)}; rename one of them"
                )
            producers[name] = index
    return producers


def _names_captured(graph: GraphProto) -> set[str]:
    """Return the names that a region reads from the scopes around it."""
    local_names = {entry.name for entries in (graph.input, graph.initializer) for entry in entries}
    local_names |= {entry.values.name for entry in graph.sparse_initializer}
    local_names |= {name for node in graph.node for name in node.output}
    used = {name for node in graph.node for name in names_read(node)}
    used |= {entry.name for entry in graph.output}
    return used - local_names
