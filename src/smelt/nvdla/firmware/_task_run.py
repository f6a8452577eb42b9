"""Execution of one task, operation by operation, and the statistics of their times and counters."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.firmware._bdma import BdmaDriver
from smelt.nvdla.firmware._cdp import CdpDriver
from smelt.nvdla.firmware._context import OperationContext
from smelt.nvdla.firmware._conv import ConvDriver
from smelt.nvdla.firmware._graph import CDMA_EVENTS, check_stream
from smelt.nvdla.firmware._pdp import PdpDriver
from smelt.nvdla.firmware._processor import NUM_GROUPS, NodeCache, Processor, ProcessorGroup
from smelt.nvdla.firmware._rubik import RubikDriver
from smelt.nvdla.firmware._sdp import SdpDriver
from smelt.nvdla.loadable import ConvSurface, OperationEvent, OperationType, PdpSurface, SdpSurface

if TYPE_CHECKING:
    from smelt.nvdla.firmware._processor import Node
    from smelt.nvdla.firmware._task import TaskDescriptors
    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.loadable import Consumer, Descriptor
    from smelt.nvdla.registers import RegisterFile


@dataclass(frozen=True, slots=True)
class OperationStatistics:
    """Statistics of one operation; times are in seconds."""

    index: int
    roi: int
    op_type: OperationType
    group: int
    started_s: float
    """Time from the start of the task until the operation was enabled."""
    finished_s: float
    """Time from the start of the task until the operation's completion was handled."""
    counters: Descriptor | None = None
    """Performance counters of the engine, or None if they were not enabled."""


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """Statistics of one task; its operations are in the order of completion."""

    operations: tuple[OperationStatistics, ...]
    duration_s: float


ENGINES: Final = (BdmaDriver(), ConvDriver(), SdpDriver(), PdpDriver(), CdpDriver(), RubikDriver())
"""The engines, indexed by `OperationType`."""
_DONE: Final = OperationEvent.COMPLETED
_INTERRUPTS: Final = {
    "SDP_DONE": (OperationType.SDP, _DONE),
    "CDP_DONE": (OperationType.CDP, _DONE),
    "PDP_DONE": (OperationType.PDP, _DONE),
    "BDMA_DONE": (OperationType.BDMA, _DONE),
    "RUBIK_DONE": (OperationType.RUBIK, _DONE),
    "CDMA_DAT_DONE": (OperationType.CONV, OperationEvent.CDMA_DATA_DONE),
    "CDMA_WT_DONE": (OperationType.CONV, OperationEvent.CDMA_WEIGHTS_DONE),
    "CACC_DONE": (OperationType.CONV, _DONE),
}
"""Engine and event of the fields of GLB.S_INTR_STATUS, without the group's number."""
_DRAIN_S: Final = 1.0
"""Maximum time to wait for the operations of a failed task that are still running."""


@dataclass(eq=False)
class TaskRun:
    """State of a task that is being executed."""

    registers: RegisterFile
    task: TaskDescriptors
    configuration: Configuration
    started_s: float
    deadline_s: float

    def __post_init__(self) -> None:
        self._processors = tuple(Processor(engine) for engine in ENGINES)
        self._cache = NodeCache(self.task)
        status = self.registers.map.register("GLB.S_INTR_STATUS")
        self._status_address = status.address
        self._status_bits = tuple(
            (status.field(f"{name}_STATUS{number}").mask, self._processors[op_type], number, event)
            for name, (op_type, event) in _INTERRUPTS.items()
            for number in range(NUM_GROUPS)
        )
        self._done: list[OperationStatistics] = []

    @property
    def _num_nodes(self) -> int:
        return self.task.network.num_operations * self.task.num_rois

    def execute(self) -> TaskStatistics:
        """Run the task; return when it has ended.

        Raises:
            NvdlaError: If an operation is invalid, or the task stops or exceeds its deadline.
        """
        self.registers.write("GLB.S_INTR_MASK", 0)
        self.registers.write("GLB.S_INTR_STATUS", self.registers.read("GLB.S_INTR_STATUS"))
        try:
            self._start_processors()
            while len(self._done) < self._num_nodes:
                if not any(group.events for item in self._processors for group in item.groups):
                    self._wait()
                self._handle_events()
        except NvdlaError as error:
            if error.status is not NvError.TIMEOUT:
                with contextlib.suppress(NvdlaError):  # report the first error
                    self._drain()
            raise
        duration_s = time.monotonic() - self.started_s
        return TaskStatistics(tuple(self._done), duration_s)

    # --- waiting for hardware

    def _active_groups(self) -> list[tuple[Processor, ProcessorGroup]]:
        return [
            (processor, group)
            for processor in self._processors
            for group in processor.groups
            if group.is_active
        ]

    def _wait(self) -> None:
        """Wait for the next interrupt and note its events.

        Raises:
            NvdlaError: INVALID_STATE if no operation is running; TIMEOUT at the deadline; the code
                of the machine model if it rejects an operation.
        """
        if not self._active_groups():
            raise NvError.INVALID_STATE.error(
                f"the task cannot continue: no operation is running; {self._describe_progress()}"
            )
        remaining_s = self.deadline_s - time.monotonic()
        try:
            is_raised = remaining_s > 0 and self.registers.bus.wait_for_interrupt(remaining_s)
        except NvdlaError as error:  # the machine model reports why its engine hangs
            is_raised = False
            if error.status is not NvError.TIMEOUT:
                raise NvdlaError(
                    NvError(error.status or NvError.INVALID_STATE),
                    f"the hardware rejected an operation: {error}; {self._describe_progress()}",
                ) from error
        if not is_raised:
            raise NvError.TIMEOUT.error(
                f"the task did not end in {self.deadline_s - self.started_s:g} s: "
                f"{self._describe_progress()}. State of the hardware: {self._describe_hardware()}"
            )
        self._collect_interrupts()

    def _collect_interrupts(self) -> None:
        """Read and clear the interrupt status, and note the events of active groups."""
        status = self.registers.bus.read(self._status_address)
        self.registers.bus.write(self._status_address, status)
        for mask, processor, number, event in self._status_bits:
            group = processor.groups[number]
            if status & mask and group.is_active:  # otherwise an earlier task left the interrupt
                group.events.add(event)

    def _drain(self) -> None:
        """Wait until the running operations have completed, so that the next task can start."""
        deadline_s = min(self.deadline_s, time.monotonic() + _DRAIN_S)
        while active := self._active_groups():
            for _, group in active:
                group.is_active = OperationEvent.COMPLETED not in group.events
            remaining_s = deadline_s - time.monotonic()
            if not self._active_groups() or remaining_s <= 0:
                return
            if not self.registers.bus.wait_for_interrupt(remaining_s):
                return
            self._collect_interrupts()

    def _describe_progress(self) -> str:
        """Return the completed, running and waiting operations for error messages."""
        waiting = [
            f"{node.name} waits for {node.remaining} "
            f"{'dependency' if node.remaining == 1 else 'dependencies'}"
            for node in self._cache.nodes
            if node.remaining
        ]
        active = [
            f"{group.node.name} is running in register group {group.number}"
            for _, group in self._active_groups()
            if group.node is not None
        ]
        progress = f"{len(self._done)} of {self._num_nodes} operations have completed"
        return "; ".join([progress, *active, *waiting])

    def _describe_hardware(self) -> str:
        """Return the state of the engines in use for error messages."""
        status = self.registers.read("GLB.S_INTR_STATUS")
        parts = [
            processor.engine.describe(self.registers)
            for processor in self._processors
            if any(group.node is not None for group in processor.groups)
        ]
        return "; ".join([f"interrupt status {status:#x}", *parts])

    # --- events

    def _handle_events(self) -> None:
        """Handle the noted events, of each engine in the order in which its groups started."""
        for processor in self._processors:
            first = 1 - processor.last_group
            for number in (first, 1 - first):
                group = processor.groups[number]
                for event in CDMA_EVENTS:
                    if event in group.events:
                        group.events.discard(event)
                        self._raise_event(group, event)
                if OperationEvent.COMPLETED in group.events:
                    group.events.clear()
                    self._complete(processor, group)

    def _raise_event(self, group: ProcessorGroup, event: OperationEvent) -> None:
        """Resolve the edges of a group's operation that wait for an event."""
        node = group.node
        if node is None:
            return
        for (edge, _), target in zip(node.edges, group.targets, strict=True):
            self._resolve_edge(node, edge, target, event)

    def _resolve_edge(
        self, source: Node, edge: Consumer, target: Node | None, event: OperationEvent
    ) -> None:
        """Decrement the dependency count of an edge's target; enable the target at 0."""
        if target is None or edge.event != event:
            return
        if target.remaining == 0:
            raise NvError.INVALID_STATE.error(
                f"{source.name} raised the event {event.name}, but {target.name} has no dependency "
                f"left: the dependency count of {target.name} is too small"
            )
        target.remaining -= 1
        if target.remaining == 0:
            self._enable(target)

    # --- the four steps of an operation

    def _start_processors(self) -> None:
        """Submit the first operation of each engine, and prepare the second."""
        for op_type in OperationType:
            head = self.task.network.op_head[op_type]
            if head == -1:
                continue
            node = self._cache.acquire(head, op_type, 0)
            self._submit(self._processors[op_type], node)
            self._cache.release(node)
            self._dequeue(self._processors[op_type])

    def _submit(self, processor: Processor, node: Node) -> None:
        """Prepare an operation, and program it if its group's registers may be written."""
        group = self._prepare(processor, node)
        if self._is_ready(processor, group):
            self._program(processor, group)

    def _prepare(self, processor: Processor, node: Node) -> ProcessorGroup:
        """Assign an operation to a free group and read its descriptors."""
        group, rdma_number = self._choose_group(processor)
        at = node.roi * self.task.network.num_operations + node.index
        node.references += 1
        group.node = node
        group.operation = self.task.read_operation(node.op_type, at)
        group.surface = self.task.read_surface(node.op_type, at)
        group.is_pending = True
        group.is_rdma_needed = processor.engine.needs_rdma(group.operation, group.surface)
        group.rdma_number = rdma_number
        processor.tail = node
        return group

    def _choose_group(self, processor: Processor) -> tuple[ProcessorGroup, int]:
        """Return the free group that hardware runs next, and the number of the RDMA group.

        Raises:
            NvdlaError: INVALID_STATE if the hardware is not idle.
        """
        engine = processor.engine
        used = [group for group in processor.groups if group.node is not None]
        number = 1 - used[0].number if used else engine.find_group(self.registers)
        if not used:
            processor.last_group = 1 - number
        reading = [group for group in used if group.is_rdma_needed]
        if reading:
            rdma_number = 1 - reading[0].rdma_number
        else:
            rdma_number = engine.find_rdma_group(self.registers)
        if not engine.is_group_idle(self.registers, number):
            raise NvError.INVALID_STATE.error(
                f"register group {number} of {processor.name} is still in use by an earlier task: "
                f"{engine.describe(self.registers)}. Reset the device"
            )
        return processor.groups[number], rdma_number

    def _is_ready(self, processor: Processor, group: ProcessorGroup) -> bool:
        """Return whether a group's registers may be written now."""
        other = processor.other(group)
        if not processor.engine.has_shadow_groups:
            return other.node is None or other.is_active
        lut_index = processor.engine.lut_index(group.operation)
        if lut_index == -1 or other.lut_index == lut_index:
            return True
        # Both groups share one table. It is locked while the engine runs, and must not be
        # replaced while the other group needs its contents.
        return other.lut_index == -1 and not other.is_active

    def _program(self, processor: Processor, group: ProcessorGroup) -> None:
        """Write an operation to its group's registers; enable it if nothing is left to wait for."""
        node = group.node
        if node is None:
            raise NvError.INVALID_STATE.error(
                f"register group {group.number} of {processor.name} has no operation to program"
            )
        processor.engine.set_producer(self.registers, group.number, group.rdma_number)
        group.lut_index = processor.engine.lut_index(group.operation)
        context = OperationContext(
            self.registers,
            self.task,
            self.configuration,
            node.op_type,
            node.index,
            node.roi,
            group.is_rdma_needed,
            is_lut_loaded=group.lut_index == processor.other(group).lut_index,
        )
        self._check_fusion(context, node, group)
        processor.engine.program(context, group.operation, group.surface)
        group.targets = [
            None
            if edge.index == -1
            else self._cache.acquire(edge.index, OperationType(op_type), node.roi)
            for edge, op_type in node.edges
        ]
        self._raise_event(group, OperationEvent.PROGRAMMED)
        group.is_pending = False
        if node.remaining == 0:
            self._enable(node)

    def _check_fusion(self, context: OperationContext, node: Node, group: ProcessorGroup) -> None:
        """Refuse an operation that does not match the data of its fused parent."""
        parent = node.descriptor.fused_parent.index
        operation, surface = group.operation, group.surface
        if parent == -1 or not isinstance(surface, (SdpSurface, PdpSurface)) or operation is None:
            return
        at = node.roi * self.task.network.num_operations + parent
        op_type = OperationType(node.op_type - 1)
        parent_surface = self.task.read_surface(op_type, at)
        if isinstance(parent_surface, (ConvSurface, SdpSurface)):
            source = self.task.read_operation(op_type, at), parent_surface.dst_data
            check_stream(context, parent, source, (operation, surface.src_data))

    def _enable(self, node: Node) -> None:
        """Enable an operation without remaining dependencies, if its registers are written."""
        processor = self._processors[node.op_type]
        group = processor.find_group(node)
        if group is None or group.is_pending or group.is_active:
            return
        engine = processor.engine
        engine.set_producer(self.registers, group.number, group.rdma_number)
        group.started_s = time.monotonic()
        group.is_active = True
        if engine.is_empty(group.surface):
            group.events.add(OperationEvent.COMPLETED)
        else:
            if self.task.has_statistics:
                engine.enable_counters(self.registers)
            engine.enable(self.registers, group.number, with_rdma=group.is_rdma_needed)
        self._raise_event(group, OperationEvent.ENABLED)

    def _complete(self, processor: Processor, group: ProcessorGroup) -> None:
        """Free the group of a completed operation and continue with the engine's next ones."""
        node = group.node
        if node is None:
            return
        self._record(processor, group, node)
        group.is_active = False
        group.lut_index = -1
        processor.last_group = group.number
        self._raise_event(group, OperationEvent.COMPLETED)
        for target in group.targets:
            if target is not None:
                self._cache.release(target)
        processor.groups[group.number] = ProcessorGroup(group.number)
        following = processor.other(group)
        if following.is_pending and self._is_ready(processor, following):
            self._program(processor, following)
        self._dequeue(processor)
        self._cache.release(node)

    def _dequeue(self, processor: Processor) -> None:
        """Submit an engine's next operation: the same one for the next region, or the next one."""
        tail = processor.tail
        if tail is None:
            return
        if processor.roi == self.task.num_rois - 1:
            index = tail.descriptor.consumers[tail.op_type].index
            if index == -1:
                return
            processor.roi = 0
        else:
            index = tail.index
            processor.roi += 1
        node = self._cache.acquire(index, tail.op_type, processor.roi)
        self._submit(processor, node)
        self._cache.release(node)

    def _record(self, processor: Processor, group: ProcessorGroup, node: Node) -> None:
        """Add a completed operation to the statistics."""
        finished_s = time.monotonic()
        counters = None
        if self.task.has_statistics:
            runtime_us = int((finished_s - group.started_s) * 1e6)
            processor.engine.set_producer(self.registers, group.number, group.rdma_number)
            counters = processor.engine.count(self.registers, group.number, runtime_us)
            at = node.roi * self.task.network.num_operations + node.index
            self.task.write_statistics(at, counters)
        self._done.append(
            OperationStatistics(
                index=node.index,
                roi=node.roi,
                op_type=node.op_type,
                group=group.number,
                started_s=group.started_s - self.started_s,
                finished_s=finished_s - self.started_s,
                counters=counters,
            )
        )
