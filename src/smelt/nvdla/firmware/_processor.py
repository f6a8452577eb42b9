"""State of the scheduler: nodes of the graph, register groups and processors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from smelt.nvdla._errors import NvError
from smelt.nvdla.loadable import OperationType

if TYPE_CHECKING:
    from smelt.nvdla.firmware._task import TaskDescriptors
    from smelt.nvdla.firmware._unit_driver import UnitDriver
    from smelt.nvdla.loadable import CommonOperation, Consumer, Operation, Surface

NUM_GROUPS: Final = 2
"""Number of register groups of an engine."""
MAX_CACHED: Final = NUM_GROUPS * (len(OperationType) + 2) * 2
"""Maximum number of cached nodes of a type: more than all groups together can refer to."""


@dataclass(slots=True, eq=False)
class Node:
    """An operation for one region of interest, cached while it is referred to."""

    descriptor: CommonOperation
    op_type: OperationType
    index: int
    roi: int
    remaining: int
    """Number of dependencies that have not occurred yet."""
    references: int = 0

    @property
    def name(self) -> str:
        """Name of the operation in messages."""
        return f"operation {self.index} ({self.op_type.name})"

    @property
    def edges(self) -> tuple[tuple[Consumer, int], ...]:
        """Edges to the consumers and to the fused parent, with the types of these operations."""
        parent = (self.descriptor.fused_parent, self.op_type - 1)
        return (*zip(self.descriptor.consumers, OperationType, strict=True), parent)


class NodeCache:
    """Reference-counted nodes of the dependency graph, written back to memory when released."""

    def __init__(self, task: TaskDescriptors) -> None:
        self._task = task
        self._nodes: dict[tuple[int, int], Node] = {}
        self._counts = dict.fromkeys(OperationType, 0)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that are referred to."""
        return tuple(self._nodes.values())

    def acquire(self, index: int, op_type: OperationType, roi: int) -> Node:
        """Return a node with one more reference, reading it from memory if it is not cached.

        Raises:
            NvdlaError: RESOURCE_ERROR if the cache is full; INVALID_STATE if the node in memory
                has another type.
        """
        node = self._nodes.get((index, roi))
        if node is None:
            node = self._load(index, op_type, roi)
        node.references += 1
        return node

    def release(self, node: Node) -> None:
        """Remove a reference to a node; write the node back to memory if it was the last one."""
        node.references -= 1
        if node.references:
            return
        del self._nodes[node.index, node.roi]
        self._counts[node.op_type] -= 1
        self._task.write_common(
            node.roi * self._task.network.num_operations + node.index,
            replace(node.descriptor, dependency_count=node.remaining),
        )

    def _load(self, index: int, op_type: OperationType, roi: int) -> Node:
        """Read a node from memory into the cache."""
        if self._counts[op_type] == MAX_CACHED:
            raise NvError.RESOURCE_ERROR.error(
                f"operation {index} cannot be loaded: the scheduler's cache already holds "
                f"{MAX_CACHED} operations of type {op_type.name}, its maximum"
            )
        descriptor = self._task.read_common(roi * self._task.network.num_operations + index)
        if descriptor.op_type != op_type:
            raise NvError.INVALID_STATE.error(
                f"operation {index} has type {descriptor.op_type}, expected {op_type} "
                f"({op_type.name}); the dependency graph changed while the task was running"
            )
        node = Node(descriptor, op_type, index, roi, descriptor.dependency_count)
        self._nodes[index, roi] = node
        self._counts[op_type] += 1
        return node


@dataclass(slots=True, eq=False)
class ProcessorGroup:
    """One of an engine's two register groups, and the operation that it holds."""

    number: int
    node: Node | None = None
    operation: Operation | None = None
    surface: Surface | None = None
    rdma_number: int = 0
    is_rdma_needed: bool = False
    is_pending: bool = False
    """Whether the operation is prepared but its registers are not all written yet."""
    is_active: bool = False
    """Whether the operation is enabled and has not completed."""
    events: set[int] = field(default_factory=set[int])
    lut_index: int = -1
    """Index of the lookup table that the operation uses, or -1."""
    targets: list[Node | None] = field(default_factory=list["Node | None"])
    """Nodes at the edges of the operation, in the order of `Node.edges`; None without an edge."""
    started_s: float = 0.0


@dataclass(slots=True, eq=False)
class Processor:
    """An engine with its two groups and its position in its chain of operations."""

    engine: UnitDriver
    groups: list[ProcessorGroup] = field(
        default_factory=lambda: [ProcessorGroup(0), ProcessorGroup(1)]
    )
    last_group: int = 1
    roi: int = 0
    tail: Node | None = None
    """The operation that was prepared last; its consumer of the same type is the next."""

    @property
    def name(self) -> str:
        """Name of the engine."""
        return self.engine.op_type.name

    def other(self, group: ProcessorGroup) -> ProcessorGroup:
        """Return the other group."""
        return self.groups[1 - group.number]

    def find_group(self, node: Node) -> ProcessorGroup | None:
        """Return the group that holds a node, or None."""
        for group in self.groups:
            if group.node is node:
                return group
        return None
