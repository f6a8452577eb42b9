"""The dependency graph of a task, checked whole before the first register is written.

The scheduler moves every operation through four moments: it is programmed, enabled, it runs, and
it is completed. What must come before what follows from the graph's edges, from the order in which
an engine takes its operations, and from its two register groups. When these constraints have no
cycle, no order in which hardware finishes its work can stop the task.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import CommonOperation, OperationEvent, OperationType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.nvdla.loadable import Consumer

MAX_OPERATIONS: Final = 1 << 15
"""Operations times regions of interest that a task may have; descriptors can name no more."""
_MAX_NAMED: Final = 6
_PROGRAMMED, _ENABLED, _RUNNING, _COMPLETED = range(4)
_PHASES: Final = ("programmed", "enabled", "running", "completed")
_PHASE_OF_EVENT: Final = {
    OperationEvent.COMPLETED: _COMPLETED,
    OperationEvent.PROGRAMMED: _PROGRAMMED,
    OperationEvent.ENABLED: _ENABLED,
    # Raised somewhere between running and completed: the later bound is the safe one.
    OperationEvent.CDMA_WEIGHTS_DONE: _COMPLETED,
    OperationEvent.CDMA_DATA_DONE: _COMPLETED,
}
_CDMA_EVENTS: Final = (OperationEvent.CDMA_WEIGHTS_DONE, OperationEvent.CDMA_DATA_DONE)


class GraphOperations:
    """The nodes of a graph, each read from its bytes when it is first asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._read: dict[int, CommonOperation] = {}

    def __len__(self) -> int:
        return len(self._data) // CommonOperation.size_bytes()

    def __getitem__(self, node: int) -> CommonOperation:
        operation = self._read.get(node)
        if operation is None:
            operation = CommonOperation.from_bytes(self._data, node * CommonOperation.size_bytes())
            self._read[node] = operation
        return operation

    def __iter__(self) -> Iterator[CommonOperation]:
        return (self[node] for node in range(len(self)))


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """A task's operations and their edges, for every region of interest."""

    heads: tuple[int, ...]
    num_operations: int
    num_rois: int
    operations: GraphOperations
    """Of the first region, then of the second, and so on."""

    def name(self, index: int) -> str:
        """How messages call an operation."""
        if 0 <= index < self.num_operations:
            return f"operation {index} ({_type_name(self.operations[index].op_type)})"
        return f"operation {index}"

    def edges(self, node: int) -> Iterator[tuple[str, Consumer, int]]:
        """The slots of a node that name another: slot, content, the type that it must have."""
        operation = self.operations[node]
        for op_type, consumer in enumerate(operation.consumers):
            if consumer.index != -1:
                yield f"consumers[{_type_name(op_type)}]", consumer, op_type
        if operation.fused_parent.index != -1:
            yield "fused_parent", operation.fused_parent, operation.op_type - 1


def check_graph(graph: TaskGraph) -> None:
    """Refuse a graph on which the scheduler could stop, or that contradicts itself.

    Raises:
        NvdlaError: BAD_PARAMETER; the message names the operations and what is wrong with them.
    """
    for check in (_check_heads, _check_nodes, _check_counts):
        _refuse(graph, list(islice(check(graph), _MAX_NAMED + 1)))
    chains, problems = _walk_chains(graph)
    _refuse(graph, problems)
    _check_order(graph, chains)


def _refuse(graph: TaskGraph, problems: list[str]) -> None:
    if not problems:
        return
    shown = "; ".join(problems[:_MAX_NAMED])
    more = "; and more" if len(problems) > _MAX_NAMED else ""
    raise NvdlaError(
        NvError.BAD_PARAMETER,
        f"the task's dependency graph of {graph.num_operations} operations cannot run: "
        f"{shown}{more}. The loadable is invalid: compile it again",
    )


def _type_name(op_type: int) -> str:
    return OperationType(op_type).name if 0 <= op_type < len(OperationType) else f"type {op_type}"


def _check_heads(graph: TaskGraph) -> Iterator[str]:
    for op_type, head in enumerate(graph.heads):
        if not -1 <= head < graph.num_operations:
            yield f"op_head[{_type_name(op_type)}] is {head}, outside the operations"
        elif head != -1 and graph.operations[head].op_type != op_type:
            yield f"op_head[{_type_name(op_type)}] is {graph.name(head)}"


def _check_nodes(graph: TaskGraph) -> Iterator[str]:
    """Check node by node, so that a list of rubbish is refused at its start."""
    for node, operation in enumerate(graph.operations):
        index = node % graph.num_operations
        if operation.op_type >= len(OperationType):
            yield f"operation {index} has the unknown type {operation.op_type}"
        elif operation.op_type != graph.operations[index].op_type:
            yield f"{graph.name(index)} is {_type_name(operation.op_type)} in another region"
        else:
            yield from _check_edges(graph, node)


def _check_edges(graph: TaskGraph, node: int) -> Iterator[str]:
    operation, index = graph.operations[node], node % graph.num_operations
    for slot, edge, wanted in graph.edges(node):
        where = f"{graph.name(index)} {slot}"
        if not 0 <= edge.index < graph.num_operations:
            yield f"{where} is {edge.index}, outside the operations"
        elif edge.index == index:
            yield f"{where} is itself"
        elif graph.operations[edge.index].op_type != wanted:
            yield f"{where} is {graph.name(edge.index)}, not {_type_name(wanted)}"
        elif edge.event > max(OperationEvent):
            yield f"{where} waits for the unknown event {edge.event}"
        elif edge.event in _CDMA_EVENTS and operation.op_type != OperationType.CONV:
            yield f"{where} waits for {OperationEvent(edge.event).name}, which only CONV has"
    may_be_fed = operation.op_type in (OperationType.SDP, OperationType.PDP)
    if operation.fused_parent.index != -1 and not may_be_fed:
        yield f"{graph.name(index)} has a fused parent; only SDP and PDP may"


def _check_counts(graph: TaskGraph) -> Iterator[str]:
    counts = [0] * len(graph.operations)
    for node in range(len(graph.operations)):
        base = node - node % graph.num_operations
        for _, edge, _ in graph.edges(node):
            if edge.event != OperationEvent.NONE:
                counts[base + edge.index] += 1
    for node, (operation, count) in enumerate(zip(graph.operations, counts, strict=True)):
        if operation.dependency_count != count:
            yield (
                f"{graph.name(node % graph.num_operations)} waits for "
                f"{operation.dependency_count} dependencies, but {count} edges lead to it"
            )


def _walk_chains(graph: TaskGraph) -> tuple[list[list[int]], list[str]]:
    """The order in which each engine takes its operations; and what is wrong with it."""
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
            problems.append(f"the chain of {_type_name(op_type)} returns to {graph.name(index)}")
        chains.append(chain)
    problems += [
        f"{graph.name(index)} is in no chain that starts at an op_head"
        for index, is_reached in enumerate(reached)
        if not is_reached
    ]
    return chains, problems


def _check_order(graph: TaskGraph, chains: list[list[int]]) -> None:
    """Sort all moments; what a cycle leaves over is the diagnosis."""
    before: list[list[int]] = [[] for _ in range(4 * len(graph.operations))]
    for first, then in _constraints(graph, chains):
        before[then].append(first)
    left = _find_unsorted(before)
    if left:
        _refuse(graph, [_describe_cycle(graph, before, left)])


def _constraints(graph: TaskGraph, chains: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Pairs of moments: the first comes before the second."""
    for node in range(len(graph.operations)):
        for phase in (_PROGRAMMED, _ENABLED, _RUNNING):
            yield 4 * node + phase, 4 * node + phase + 1
        base = node - node % graph.num_operations
        for slot, edge, _ in graph.edges(node):
            target = base + edge.index
            if edge.event != OperationEvent.NONE:
                phase = _PHASE_OF_EVENT[OperationEvent(edge.event)]
                yield 4 * node + phase, 4 * target + _ENABLED
            if slot == "fused_parent":  # the one streams into the other: neither ends alone
                yield 4 * node + _RUNNING, 4 * target + _COMPLETED
                yield 4 * target + _RUNNING, 4 * node + _COMPLETED
    for op_type, chain in enumerate(chains):
        yield from _chain_constraints(graph, chain, is_bdma=op_type == OperationType.BDMA)


def _chain_constraints(
    graph: TaskGraph, chain: list[int], *, is_bdma: bool
) -> Iterator[tuple[int, int]]:
    # An engine takes one operation for every region before the next operation.
    nodes = [roi * graph.num_operations + index for index in chain for roi in range(graph.num_rois)]
    groups = 1 if is_bdma else 2  # BDMA's groups share their registers
    for position, node in enumerate(nodes):
        if position >= 1:
            yield 4 * nodes[position - 1] + _COMPLETED, 4 * node + _RUNNING
        if position >= groups:
            yield 4 * nodes[position - groups] + _COMPLETED, 4 * node + _PROGRAMMED


def _find_unsorted(before: list[list[int]]) -> set[int]:
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(firsts) for firsts in before]
    for then, firsts in enumerate(before):
        for first in firsts:
            after[first].append(then)
    ready = deque(phase for phase, count in enumerate(waiting) if count == 0)
    left = set(range(len(before)))
    while ready:
        phase = ready.popleft()
        left.discard(phase)
        for then in after[phase]:
            waiting[then] -= 1
            if waiting[then] == 0:
                ready.append(then)
    return left


def _describe_cycle(graph: TaskGraph, before: list[list[int]], left: set[int]) -> str:
    path: list[int] = []
    seen: dict[int, int] = {}
    phase = min(left)
    while phase not in seen:
        seen[phase] = len(path)
        path.append(phase)
        phase = next(first for first in before[phase] if first in left)
    cycle = [*path[seen[phase] :], phase]
    words = [
        f"{graph.name(item // 4 % graph.num_operations)} {_PHASES[item % 4]}"
        for item in cycle[: 2 * _MAX_NAMED]
    ]
    return "these operations form a cycle: " + " after ".join(words)
