"""Order and names of the nodes of one graph: every result made once, nothing in circles."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from onnx import AttributeProto

from smelt.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from onnx import GraphProto, NodeProto


def order_nodes(nodes: Sequence[NodeProto], given: Iterable[str], where: str) -> list[NodeProto]:
    """The nodes such that each stands behind those it reads; as given where that is so already.

    Raises GraphError: a result made twice, or a cycle.
    """
    producers = _producers(nodes, set(given), where)
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for index, node in enumerate(nodes):
        for producer in {producers[name] for name in names_read(node) if name in producers}:
            readers[producer].append(index)
            missing[index] += 1
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[NodeProto] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [describe(nodes[index]) for index, count in enumerate(missing) if count]
        raise GraphError(
            f"{where} has a cycle: these wait for each other: {', '.join(stuck[:8])}"
            f"{' …' if len(stuck) > 8 else ''}; a network must not read its own results"
        )
    return order


def names_read(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, those that its regions capture included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from _names_captured(attribute.g)


def describe(node: NodeProto) -> str:
    """The node as messages show it: by its name, else by what it makes."""
    label = node.name or next((name for name in node.output if name), "without a name")
    return f"{node.op_type} {label!r}"


def _producers(nodes: Sequence[NodeProto], given: set[str], where: str) -> dict[str, int]:
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producers or name in given:
                first = (
                    describe(nodes[producers[name]]) if name in producers else "an input or weight"
                )
                raise GraphError(
                    f"{where} computes {name!r} twice: by {first} and by {describe(node)}; rename "
                    "one of them"
                )
            producers[name] = index
    return producers


def _names_captured(graph: GraphProto) -> set[str]:
    own = {entry.name for entry in graph.input} | {entry.name for entry in graph.initializer}
    own |= {entry.values.name for entry in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = {name for node in graph.node for name in names_read(node)}
    used |= {entry.name for entry in graph.output}
    return used - own
