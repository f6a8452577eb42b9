"""What the scheduler remembers: nodes of the graph, register groups, processors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import OperationType

if TYPE_CHECKING:
    from smelt.nvdla.firmware._engine import Engine
    from smelt.nvdla.firmware._task import TaskDescriptors
    from smelt.nvdla.loadable import CommonOperation, Operation, Surface

NUM_GROUPS: Final = 2
MAX_CACHED: Final = NUM_GROUPS * (len(OperationType) + 2) * 2
"""Nodes of a type that the cache holds: what all groups together can refer to, and to spare."""


@dataclass(slots=True, eq=False)
class Node:
    """An operation for one region of interest, while something refers to it."""

    descriptor: CommonOperation
    op_type: OperationType
    index: int
    roi: int
    remaining: int
    """Dependencies that have not happened yet."""
    references: int = 0

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"operation {self.index} ({self.op_type.name})"


class NodeCache:
    """Nodes of the dependency graph, held while referred to, then written back to memory."""

    def __init__(self, task: TaskDescriptors) -> None:
        self._task = task
        self._nodes: dict[tuple[int, int], Node] = {}
        self._counts = dict.fromkeys(OperationType, 0)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that something refers to."""
        return tuple(self._nodes.values())

    def acquire(self, index: int, op_type: OperationType, roi: int) -> Node:
        """Refer to a node, reading it from memory if nothing else does.

        Raises:
            NvdlaError: RESOURCE_ERROR: the cache is full; INVALID_STATE: memory now has another
                type there.
        """
        node = self._nodes.get((index, roi))
        if node is None:
            node = self._load(index, op_type, roi)
        node.references += 1
        return node

    def release(self, node: Node) -> None:
        """Refer to a node no more; the last one puts it back to memory."""
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
        if self._counts[op_type] == MAX_CACHED:
            raise NvdlaError(
                NvError.RESOURCE_ERROR,
                f"{MAX_CACHED} operations of type {op_type.name} are referred to at once; the "
                "scheduler's cache has room for no more",
            )
        descriptor = self._task.read_common(roi * self._task.network.num_operations + index)
        if descriptor.op_type != op_type:
            raise NvdlaError(
                NvError.INVALID_STATE,
                f"operation {index} is of type {descriptor.op_type}, not {op_type.name}; its "
                "dependency graph changed while the task ran",
            )
        node = Node(descriptor, op_type, index, roi, descriptor.dependency_count)
        self._nodes[index, roi] = node
        self._counts[op_type] += 1
        return node


@dataclass(slots=True, eq=False)
class Group:
    """One of an engine's two sets of registers, and the operation in it."""

    number: int
    node: Node | None = None
    operation: Operation | None = None
    surface: Surface | None = None
    rdma_number: int = 0
    is_rdma_needed: bool = False
    is_pending: bool = False
    """Prepared, but its registers are not written yet."""
    is_programming: bool = False
    is_active: bool = False
    events: set[int] = field(default_factory=set[int])
    lut_index: int = -1
    """The lookup table that it has written, or relies on."""
    consumers: list[Node | None] = field(default_factory=list["Node | None"])
    fused_parent: Node | None = None
    started_s: float = 0.0

    def clear(self) -> None:
        """Forget the operation."""
        self.node = self.operation = self.surface = self.fused_parent = None
        self.rdma_number = 0
        self.is_rdma_needed = self.is_pending = self.is_programming = self.is_active = False
        self.events.clear()
        self.lut_index = -1
        self.consumers = []


@dataclass(slots=True, eq=False)
class Processor:
    """An engine with its two groups and its place in the chain of operations."""

    engine: Engine
    groups: tuple[Group, Group] = field(default_factory=lambda: (Group(0), Group(1)))
    last_group: int = 1
    roi: int = 0
    tail: Node | None = None
    """The operation that was prepared last; it names the next."""

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.op_type.name

    def other(self, group: Group) -> Group:
        """The other group."""
        return self.groups[1 - group.number]

    def find_group(self, node: Node) -> Group | None:
        """The group that holds a node."""
        for group in self.groups:
            if group.node is node:
                return group
        return None
