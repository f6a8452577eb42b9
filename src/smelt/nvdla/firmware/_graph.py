"""The dependency graph of a task and the checks before the first register is written.

Every operation passes through four phases: programmed, enabled, running and completed. The order
of the phases of different operations is constrained by the graph's edges, by the order in which an
engine takes its operations, and by its two register groups. If these constraints have no cycle, the
task cannot deadlock, in whatever order the hardware completes its work.

An operation and its fused parent must also agree on the data that streams between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import TYPE_CHECKING, Final

from smelt.nvdla._errors import NvError
from smelt.nvdla.loadable import (
    CommonOperation,
    ConvOperation,
    MemoryType,
    OperationEvent,
    OperationType,
    PdpOperation,
    Precision,
    SdpOperation,
    name_of,
)
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import Consumer, DataCube, Operation


Stream = tuple["Operation", "DataCube"]
"""An operation and the cube that it writes to or reads from the stream."""


def check_stream(context: OperationContext, parent: int, source: Stream, target: Stream) -> None:
    """Refuse an operation that expects other data than its fused parent produces.

    The hardware would wait for the missing data for ever.

    Args:
        context: The operation that reads the stream.
        parent: Index of the fused parent.
        source: The fused parent and its destination.
        target: The operation and its source.
    """
    (producer, output), (consumer, input_) = source, target
    ends = [cube.type == MemoryType.ON_THE_FLY for cube in (output, input_)]
    if not any(ends):
        return
    where = f"operation {parent}, the fused parent,"
    context.require(ends[0], f"the source is on the fly, but {where} writes to memory")
    context.require(ends[1], f"the source is in memory, but {where} passes data on the fly")
    extents = [f"{cube.width} x {cube.height} x {cube.channel}" for cube in (output, input_)]
    context.require(
        extents[0] == extents[1],
        f"the source is {extents[1]} (width, height, channels), but {where} produces {extents[0]}",
    )
    for what, values in _common_properties(producer, consumer).items():
        context.require(
            values[0] == values[1], f"the {what} is {values[1]}, but that of {where} is {values[0]}"
        )


def _common_properties(producer: Operation, consumer: Operation) -> dict[str, tuple[str, str]]:
    """Return the properties, by name, that producer and consumer must have in common, as text."""
    if isinstance(producer, ConvOperation) and isinstance(consumer, SdpOperation):
        return {
            "precision": _precisions(producer.out_precision, consumer.src_precision),
            "convolution mode": (str(producer.conv_mode), str(consumer.conv_mode)),
            "batch number": (str(producer.batch), str(consumer.batch_num)),
        }
    if isinstance(producer, SdpOperation) and isinstance(consumer, PdpOperation):
        return {"precision": _precisions(producer.dst_precision, consumer.precision)}
    return {}


def _precisions(first: int, second: int) -> tuple[str, str]:
    return name_of(Precision, first), name_of(Precision, second)


MAX_OPERATIONS: Final = 1 << 15
"""Maximum of operations times regions of interest in a task: descriptor indices are 16-bit."""
_MAX_NAMED: Final = 6
"""Maximum number of problems that a message lists."""
_PROGRAMMED, _ENABLED, _RUNNING, _COMPLETED = range(4)
_PHASES: Final = ("is programmed", "is enabled", "runs", "completes")
_PHASE_OF_EVENT: Final = {
    OperationEvent.COMPLETED: _COMPLETED,
    OperationEvent.PROGRAMMED: _PROGRAMMED,
    OperationEvent.ENABLED: _ENABLED,
    # Hardware raises these events between running and completed; the later phase is safe.
    OperationEvent.CDMA_WEIGHTS_DONE: _COMPLETED,
    OperationEvent.CDMA_DATA_DONE: _COMPLETED,
}
CDMA_EVENTS: Final = (OperationEvent.CDMA_WEIGHTS_DONE, OperationEvent.CDMA_DATA_DONE)
"""Events that only convolutions raise, in the order in which they are handled."""


class OperationDescriptors:
    """Operations of a dependency graph; each is decoded from its bytes at its first use."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._decoded: dict[int, CommonOperation] = {}

    def __len__(self) -> int:
        return len(self._data) // CommonOperation.size_bytes()

    def __getitem__(self, node: int) -> CommonOperation:
        operation = self._decoded.get(node)
        if operation is None:
            operation = CommonOperation.from_bytes(self._data, node * CommonOperation.size_bytes())
            self._decoded[node] = operation
        return operation

    def __iter__(self) -> Iterator[CommonOperation]:
        return (self[node] for node in range(len(self)))


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """A task's operations and their edges, for every region of interest."""

    heads: tuple[int, ...]
    """Index of the first operation of each type, or -1."""
    num_operations: int
    num_rois: int
    operations: OperationDescriptors
    """All operations of the first region, then all of the second, and so on."""

    def name(self, index: int) -> str:
        """Return the name of an operation in messages."""
        if 0 <= index < self.num_operations:
            return f"operation {index} ({_type_name(self.operations[index].op_type)})"
        return f"operation {index}"

    def edges(self, node: int) -> Iterator[tuple[str, Consumer, int]]:
        """Yield slot name, edge and required type for each operation that a node refers to."""
        operation = self.operations[node]
        for op_type, consumer in enumerate(operation.consumers):
            if consumer.index != -1:
                yield f"consumers[{_type_name(op_type)}]", consumer, op_type
        if operation.fused_parent.index != -1:
            yield "fused_parent", operation.fused_parent, operation.op_type - 1


def check_graph(graph: TaskGraph) -> None:
    """Refuse a graph that is inconsistent or on which the scheduler could deadlock.

    Raises:
        NvdlaError: BAD_PARAMETER; the message names the operations and their problems.
    """
    for check in (_check_heads, _check_nodes, _check_counts):
        _refuse(graph, list(islice(check(graph), _MAX_NAMED + 1)))
    chains, problems = _walk_chains(graph)
    _refuse(graph, problems)
    _check_order(graph, chains)


def _refuse(graph: TaskGraph, problems: list[str]) -> None:
    """Raise an NvdlaError that lists the first problems, if there are any."""
    if not problems:
        return
    shown = "; ".join(problems[:_MAX_NAMED])
    more = "; and further problems" if len(problems) > _MAX_NAMED else ""
    raise NvError.BAD_PARAMETER.error(
        f"the task's dependency graph of {counted(graph.num_operations, 'operation')} cannot "
        f"run: {shown}{more}. The loadable is invalid: compile it again"
    )


def _type_name(op_type: int) -> str:
    return OperationType(op_type).name if 0 <= op_type < len(OperationType) else f"type {op_type}"


def _check_heads(graph: TaskGraph) -> Iterator[str]:
    for op_type, head in enumerate(graph.heads):
        if not -1 <= head < graph.num_operations:
            yield (
                f"op_head[{_type_name(op_type)}] is {head}, which is not the index of an operation"
            )
        elif head != -1 and graph.operations[head].op_type != op_type:
            kind = _type_name(op_type)
            yield f"op_head[{kind}] refers to {graph.name(head)}; expected {kind}"


def _check_nodes(graph: TaskGraph) -> Iterator[str]:
    """Yield the problems node by node, so that a random list is refused at its first nodes."""
    for node, operation in enumerate(graph.operations):
        index = node % graph.num_operations
        if operation.op_type >= len(OperationType):
            yield f"operation {index} has the unknown type {operation.op_type}"
        elif operation.op_type != graph.operations[index].op_type:
            yield (
                f"{graph.name(index)} has type {_type_name(operation.op_type)} in another region "
                "of interest"
            )
        else:
            yield from _check_edges(graph, node)


def _check_edges(graph: TaskGraph, node: int) -> Iterator[str]:
    """Yield the problems of a node's edges."""
    operation, index = graph.operations[node], node % graph.num_operations
    for slot, edge, op_type in graph.edges(node):
        where = f"{slot} of {graph.name(index)}"
        if not 0 <= edge.index < graph.num_operations:
            yield f"{where} is {edge.index}, which is not the index of an operation"
        elif edge.index == index:
            yield f"{where} refers to the operation itself"
        elif graph.operations[edge.index].op_type != op_type:
            yield f"{where} refers to {graph.name(edge.index)}; expected {_type_name(op_type)}"
        elif edge.event > max(OperationEvent):
            yield f"{where} has the unknown event {edge.event}"
        elif edge.event in CDMA_EVENTS and operation.op_type != OperationType.CONV:
            yield f"{where} has event {OperationEvent(edge.event).name}, which only CONV raises"
    may_have_parent = operation.op_type in (OperationType.SDP, OperationType.PDP)
    if operation.fused_parent.index != -1 and not may_have_parent:
        yield f"{graph.name(index)} has a fused parent; only SDP and PDP may have one"


def _check_counts(graph: TaskGraph) -> Iterator[str]:
    """Yield the operations whose dependency count differs from their number of edges."""
    counts = [0] * len(graph.operations)
    for node in range(len(graph.operations)):
        base = node - node % graph.num_operations
        for _, edge, _ in graph.edges(node):
            if edge.event != OperationEvent.NONE:
                counts[base + edge.index] += 1
    for node, (operation, count) in enumerate(zip(graph.operations, counts, strict=True)):
        if operation.dependency_count != count:
            yield (
                f"{graph.name(node % graph.num_operations)} has a dependency count of "
                f"{operation.dependency_count}, but {counted(count, 'edge')} "
                f"{'leads' if count == 1 else 'lead'} to it"
            )


def _walk_chains(graph: TaskGraph) -> tuple[list[list[int]], list[str]]:
    """Return the order in which each engine takes its operations, and the problems found.

    The consumers of an operation's own type form the chain; the last region's nodes hold it.
    """
    chains: list[list[int]] = []
    problems: list[str] = []
    reached = [False] * graph.num_operations
    last_roi = (graph.num_rois - 1) * graph.num_operations
    for op_type, head in enumerate(graph.heads):
        chain: list[int] = []
        index = head
        while index != -1 and not reached[index]:
            reached[index] = True
            chain.append(index)
            index = graph.operations[last_roi + index].consumers[op_type].index
        if index != -1:
            kind = _type_name(op_type)
            problems.append(
                f"the chain of consumers[{kind}] from op_head[{kind}] reaches {graph.name(index)} "
                "twice"
            )
        chains.append(chain)
    problems += [
        f"{graph.name(index)} cannot be reached from any op_head"
        for index, is_reached in enumerate(reached)
        if not is_reached
    ]
    return chains, problems


def _check_order(graph: TaskGraph, chains: list[list[int]]) -> None:
    """Refuse a graph whose phases cannot be sorted; the message describes a cycle.

    A phase is numbered ``4 * node + phase``.
    """
    sorter = TopologicalSorter[int]()
    for first, second in _constraints(graph, chains):
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError as error:
        phases: list[int] = error.args[1]
        steps = [
            f"{graph.name(phase // 4 % graph.num_operations)} {_PHASES[phase % 4]}"
            for phase in phases[-2 * _MAX_NAMED :]
        ]
        _refuse(graph, ["these operations form a cycle: " + " after ".join(reversed(steps))])


def _constraints(graph: TaskGraph, chains: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of phases, of which the first must come before the second."""
    for node in range(len(graph.operations)):
        for phase in (_PROGRAMMED, _ENABLED, _RUNNING):
            yield 4 * node + phase, 4 * node + phase + 1
        base = node - node % graph.num_operations
        for slot, edge, _ in graph.edges(node):
            target = base + edge.index
            if edge.event != OperationEvent.NONE:
                phase = _PHASE_OF_EVENT[OperationEvent(edge.event)]
                yield 4 * node + phase, 4 * target + _ENABLED
            if slot == "fused_parent":  # data stream between them: neither completes alone
                yield 4 * node + _RUNNING, 4 * target + _COMPLETED
                yield 4 * target + _RUNNING, 4 * node + _COMPLETED
    for op_type, chain in enumerate(chains):
        yield from _chain_constraints(graph, chain, is_bdma=op_type == OperationType.BDMA)


def _chain_constraints(
    graph: TaskGraph, chain: list[int], *, is_bdma: bool
) -> Iterator[tuple[int, int]]:
    """Yield the constraints of one engine: its order and its register groups."""
    # An engine runs an operation for every region before the next operation.
    nodes = [roi * graph.num_operations + index for index in chain for roi in range(graph.num_rois)]
    groups = 1 if is_bdma else 2  # BDMA's groups share their registers
    for position, node in enumerate(nodes):
        if position >= 1:
            yield 4 * nodes[position - 1] + _COMPLETED, 4 * node + _RUNNING
        if position >= groups:
            yield 4 * nodes[position - groups] + _COMPLETED, 4 * node + _PROGRAMMED
