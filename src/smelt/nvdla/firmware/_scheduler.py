"""Engine scheduler: runs the dependency graph of a task on six engines of two groups each.

An operation is prepared (a group is chosen and its descriptors are read), programmed (its registers
are written), enabled when all its dependencies have occurred, and completed when the hardware
reports its end. Programming, enabling and completion raise events. Other operations may depend on
them: the operation's consumers, and the fused parent that streams data into the operation.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from smelt.nvdla._errors import NvError
from smelt.nvdla.firmware._graph import check_graph
from smelt.nvdla.firmware._task import read_task
from smelt.nvdla.firmware._task_run import TaskRun, TaskStatistics
from smelt.nvdla.loadable import DescriptorVersion
from smelt.nvdla.registers import RegisterFile, load_register_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.nvdla._protocols import DmaMemory, MemorySpace, RegisterBus
    from smelt.nvdla.hardware import Configuration

DEFAULT_TIMEOUT_S: Final = 60.0
"""Default maximum duration of a task."""


class EngineScheduler:
    """Runs tasks on one accelerator, one task at a time."""

    def __init__(self, bus: RegisterBus, memory: DmaMemory, configuration: Configuration) -> None:
        self._registers = RegisterFile(bus, load_register_map(configuration.register_map))
        self._memory = memory
        self._configuration = configuration
        self._busy = threading.Lock()

    def execute_task(
        self,
        addresses: Sequence[tuple[MemorySpace, int]],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        layout: DescriptorVersion = DescriptorVersion.WITH_OFFSETS,
    ) -> TaskStatistics:
        """Run a task; return when it has ended.

        Args:
            addresses: The task's address list: memory space and physical address of each entry.
                The first entry is the network descriptor.
            timeout_s: Maximum duration of the task in seconds; a longer task fails.
            layout: Layout of the task's descriptors.

        Returns:
            Times of the operations, in the order of their completion, and their counters if the
            network has a list of statistics.

        Raises:
            NvdlaError: BUSY if another task is running; BAD_PARAMETER, NOT_SUPPORTED and others if
                the task is invalid or the hardware does not support it (the message names the
                operation); TIMEOUT if the task does not end in time (the message describes the
                state of the hardware).
        """
        if not self._busy.acquire(blocking=False):
            raise NvError.BUSY.error(
                "another task is running; the engine scheduler runs one task at a time"
            )
        try:
            started_s = time.monotonic()
            task = read_task(self._memory, addresses, layout)
            if task.network.num_operations == 0 or task.num_rois == 0:
                return TaskStatistics((), time.monotonic() - started_s)
            check_graph(task.read_graph())
            run = TaskRun(
                self._registers,
                task,
                self._configuration,
                started_s=started_s,
                deadline_s=started_s + timeout_s,
            )
            return run.execute()
        finally:
            self._busy.release()
