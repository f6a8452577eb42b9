"""The engine scheduler: runs a task's dependency graph on six engines of two groups each.

An operation is prepared (a group is chosen, its descriptors are read), programmed (its registers
are written), enabled once its dependencies have happened, and completed when hardware says so.
Each of these raises an event, which may be a dependency of others: of its consumers, and of the
operation that streams into it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.firmware._graph import check_graph
from smelt.nvdla.firmware._run import TaskRun
from smelt.nvdla.firmware._statistics import TaskStatistics
from smelt.nvdla.firmware._task import read_task
from smelt.nvdla.loadable import DescriptorLayout
from smelt.nvdla.registers import RegisterFile, load_register_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.nvdla._protocols import DmaMemory, MemorySpace, RegisterBus
    from smelt.nvdla.hardware import Configuration

DEFAULT_TIMEOUT_S: Final = 60.0


class EngineScheduler:
    """Runs tasks on one accelerator, one at a time."""

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
        layout: DescriptorLayout = DescriptorLayout.WITH_OFFSETS,
        collect_counters: bool = False,
    ) -> TaskStatistics:
        """Run a task to its end.

        Args:
            addresses: The task's address list; the first leads to its network.
            timeout_s: After so long it ends in an error.
            layout: The generation of its descriptors.
            collect_counters: Ask the engines to count, and read what they counted.

        Raises:
            NvdlaError: BUSY: another task runs. BAD_PARAMETER, NOT_SUPPORTED and others: the
                task is wrong, or asks for what the hardware lacks; the message names the
                operation. TIMEOUT: it did not end; the message says what hardware does.
        """
        if not self._busy.acquire(blocking=False):
            raise NvdlaError(
                NvError.BUSY, "another task is running; the engine scheduler takes one at a time"
            )
        try:
            return self._execute(addresses, timeout_s, layout, collect_counters=collect_counters)
        finally:
            self._busy.release()

    def _execute(
        self,
        addresses: Sequence[tuple[MemorySpace, int]],
        timeout_s: float,
        layout: DescriptorLayout,
        *,
        collect_counters: bool,
    ) -> TaskStatistics:
        started_s = time.monotonic()
        task = read_task(self._memory, addresses, layout)
        if task.network.num_operations == 0 or task.num_rois == 0:
            return TaskStatistics((), 0, time.monotonic() - started_s)
        check_graph(task.read_graph())
        run = TaskRun(
            self._registers,
            task,
            self._configuration,
            started_s=started_s,
            deadline_s=started_s + timeout_s,
            collects=collect_counters or task.has_statistics,
        )
        return run.execute()
