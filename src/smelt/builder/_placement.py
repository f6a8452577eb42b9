"""Placement: which nodes of a network run on which of several devices.

Devices are in order of preference for each node. A node is placed on the first device that has a
kernel for it, and stays on the first device of all, which runs its reference, if none has one.
Nodes on other devices than the first form *partitions*: parts of the graph that are built as
engines of their own. Each is one `Partition` node in the graph of the first device.

The nodes are ordered so that few partitions result: from all nodes whose inputs are known, those on
the current device come first. This is list scheduling with one list for each device. Nodes that
follow one another in such an order always form a convex part of the graph: no path leaves it and
comes back.

A partition always pays for its copies, because the reference that it replaces needs the same ones.
Nodes of the first device between two partitions of one device join these if they are estimated to
take less time there than the copies that they save.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, Final

from smelt.ir import FreshNames, Graph
from smelt.ops import Partition
from smelt.types import TensorType, dim_to_text, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from smelt.ir import Node, Value


_SECONDS_PER_COPY: Final = 2e-5
"""Estimated time to start a copy between devices and wait for it. Not measured: the order of
magnitude of a CUDA stream's synchronisation."""
_BYTES_PER_SECOND: Final = 1e10
"""Estimated rate of copies. Not measured: the order of magnitude of PCI Express 4.0 from memory
that is not pinned."""


@dataclass(frozen=True, slots=True)
class NodeSupport:
    """Whether a device has a kernel for a node, and its estimated time."""

    has_kernel: bool
    seconds: float
    """Estimated time of its fastest kernel; 0 if there is none."""
    reasons: list[str]
    """Which of its kernel families cannot run the node, and why."""


@dataclass(frozen=True, slots=True)
class PlacedPartition:
    """A part of a graph that runs on another device, and the node that stands for it."""

    device: int
    """Position of the device in the list."""
    graph: Graph
    """The part; its inputs and outputs are those of the node."""
    node: Node
    nodes: tuple[Node, ...]
    """The nodes that the part was made from."""


@dataclass(slots=True)
class Placement:
    """Devices of the nodes of a graph, with the reasons."""

    devices: dict[Node, int] = field(default_factory=dict["Node", int])
    """Position of the device of each node that is not on the first one."""
    reasons: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """For each of these nodes, by name, why the devices before cannot run it."""


def place(
    graph: Graph, devices: Sequence[Callable[[Node], NodeSupport]], sizes: Mapping[str, int]
) -> Placement:
    """Return the placement of a graph.

    Args:
        graph: the optimised graph.
        devices: for each device, a function that returns how it supports a node.
        sizes: symbol values at which times are estimated.
    """
    placement = Placement()
    for node in graph.nodes:
        support = devices[0](node)
        if support.has_kernel or not _can_move(node):
            continue
        reasons = support.reasons
        for device, find in enumerate(devices[1:], start=1):
            support = find(node)
            if support.has_kernel:
                placement.devices[node] = device
                placement.reasons[node.name] = reasons
                break
            reasons = [*reasons, *support.reasons]
    for nodes in _unplaced_components(graph, placement.devices) if placement.devices else ():
        around = _surrounding_device(graph, nodes, placement.devices)
        if around and all(map(_can_move, nodes)):
            supports = [devices[around](node) for node in nodes]
            saved_s = _copy_seconds(nodes, placement.devices, sizes)
            if all(s.has_kernel for s in supports) and sum(s.seconds for s in supports) < saved_s:
                placement.devices |= dict.fromkeys(nodes, around)
                reason = (
                    "its inputs and its readers are on the device of the partition, so running it "
                    "there saves copies"
                )
                placement.reasons |= {node.name: [reason] for node in nodes}
    return placement


def _unplaced_components(graph: Graph, devices: Mapping[Node, int]) -> Iterator[list[Node]]:
    """Yield the connected components of the nodes that stay on the first device."""
    seen: set[Node] = set()
    for first in graph.nodes:
        if first in devices or first in seen:
            continue
        seen.add(first)
        component = [first]
        for node in component:  # which grows meanwhile
            for neighbour in (*_producers(node), *_readers(node)):
                if neighbour not in devices and neighbour not in seen:
                    seen.add(neighbour)
                    component.append(neighbour)
        yield component


def _surrounding_device(
    graph: Graph, nodes: Sequence[Node], devices: Mapping[Node, int]
) -> int | None:
    """Return the device on which all inputs of nodes are made and all their results are read."""
    own = set(nodes)
    sources = {p for node in nodes for p in _producers(node)} - own
    readers = {r for node in nodes for r in _readers(node)} - own
    is_bound = any(
        any(graph.is_output(v) for v in node.outputs)
        or any(v is not None and v in graph.inputs for v in node.inputs)
        for node in nodes
    )
    found = {devices[node] for node in (*sources, *readers)}
    return found.pop() if sources and readers and not is_bound and len(found) == 1 else None


def _copy_seconds(
    nodes: Sequence[Node], devices: Mapping[Node, int], sizes: Mapping[str, int]
) -> float:
    """Return the estimated time of the copies to and from nodes between partitions."""
    values = {v for n in nodes for v in n.inputs if v is not None and v.producer in devices}
    values |= {v for n in nodes for v in n.outputs if any(u in devices for u in v.users)}
    total = sum(
        evaluate_dim(element_count(v.tensor.shape), sizes) * v.tensor.dtype.size_bytes
        for v in values
    )
    return len(values) * _SECONDS_PER_COPY + total / _BYTES_PER_SECOND


def _producers(node: Node) -> Iterator[Node]:
    return (v.producer for v in node.inputs if v is not None and v.producer is not None)


def _readers(node: Node) -> Iterator[Node]:
    return (user for value in node.outputs for user in value.users)


def _can_move(node: Node) -> bool:
    """Return whether a node may run in an engine of its own.

    The inputs of an engine have a type and nothing else. A node whose result depends on the
    elements of a shape that is computed at run time therefore stays, and so does one that
    determines a symbol.
    """
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if not all(isinstance(value.type, TensorType) for value in values):
        return False
    is_shape = any(value.dims is not None for value in values if value.constant is None)
    return not is_shape and not node.op.regions and not hasattr(node.op, "count_symbol")


def extract_partitions(
    graph: Graph, devices: Mapping[Node, int], names: Sequence[str], first_index: int
) -> list[PlacedPartition]:
    """Replace the nodes on other devices by partitions, and return these.

    Args:
        graph: the graph, which is changed.
        devices: position of the device of each node that is not on the first one.
        names: kind of each device.
        first_index: position of the first partition in the engine.
    """
    if not devices:
        return []
    graph.nodes = _ordered(graph, devices)
    fresh, partitions = FreshNames(graph), list[PlacedPartition]()
    runs = [(d, list(nodes)) for d, nodes in groupby(graph.nodes, lambda n: devices.get(n, 0))]
    for device, nodes in runs:
        if device:
            index = first_index + len(partitions)
            partitions.append(_extract(graph, nodes, device, names[device], index, fresh))
    graph.remove_unused()  # all moved nodes at once: one by one takes the square of their number
    return partitions


def _ordered(graph: Graph, devices: Mapping[Node, int]) -> list[Node]:
    """Return the nodes in an order in which those of one device follow one another."""
    position = {node: number for number, node in enumerate(graph.nodes)}
    missing = {node: len(set(_producers(node))) for node in graph.nodes}
    ready: dict[int, list[int]] = {device: [] for device in (0, *devices.values())}
    for node in graph.nodes:
        if not missing[node]:
            heappush(ready[devices.get(node, 0)], position[node])
    ordered: list[Node] = []
    device = 0
    while len(ordered) < len(graph.nodes):
        if not ready[device]:
            device = min((queue[0], name) for name, queue in ready.items() if queue)[1]
        node = graph.nodes[heappop(ready[device])]
        ordered.append(node)
        for reader in dict.fromkeys(_readers(node)):
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready[devices.get(reader, 0)], position[reader])
    return ordered


def _extract(
    graph: Graph, nodes: Sequence[Node], device: int, name: str, index: int, fresh: FreshNames
) -> PlacedPartition:
    """Copy nodes that follow one another into a graph of their own; nothing reads them then."""
    own = set(nodes)
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and not v.constant)
    inputs = [value for value in read if value.producer not in own]
    made = [value for node in nodes for value in node.outputs]
    results = set(graph.outputs)
    outputs = [v for v in made if v in results or any(u not in own for u in v.users)]
    part = _copy(f"{graph.name} partition {index}", nodes, inputs, outputs)
    node = graph.add(
        Partition(
            index,
            name,
            tuple(value.tensor.dtype for value in outputs),
            tuple(tuple(map(dim_to_text, value.tensor.shape)) for value in outputs),
        ),
        *inputs,
        name=fresh.make(f"partition {index} on {name}"),
        output_names=[value.name for value in outputs],
        before=nodes[0],
        layers=tuple(layer for node in nodes for layer in node.layers),
    )
    for old, new in zip(outputs, node.outputs, strict=True):
        graph.replace_uses(old, new)
    return PlacedPartition(device, part, node, tuple(nodes))


def _copy(
    name: str, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Graph:
    """Return a graph of copies of nodes; the names of its inputs and outputs are unique."""
    part = Graph(name)
    names = FreshNames(part)
    copies = {v: part.add_input(names.make(v.name), v.type) for v in inputs}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.constant is not None and value not in copies:
                copies[value] = part.add_constant(value.constant, value.name)
        twin = part.add(
            node.op,
            *(value and copies[value] for value in node.inputs),
            name=node.name,
            output_names=[value.name for value in node.outputs],
            layers=node.layers,
        )
        copies |= zip(node.outputs, twin.outputs, strict=True)
    part.outputs = [copies[value] for value in outputs]
    for value in part.outputs:
        value.name = names.make(value.name)
    return part
