"""Driver of modelled hardware that records register accesses as a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla.port._machine_driver import MachineDriver
from smelt.nvdla.traces import TraceRecorder
from smelt.types import override

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.nvdla._protocols import DmaMemory, RegisterBus
    from smelt.nvdla.hardware import Configuration, Machine
    from smelt.nvdla.port._interfaces import Bytes, NvDlaHeap, PhysicalRegion, PhysicalTask


class TracedDriver(MachineDriver):
    """`Driver` of one machine that records its tasks as a trace.

    Before a task the trace sets the memory that software changed since the previous task; after the
    task the trace compares the memory that the task changed.
    """

    def __init__(
        self, configuration: Configuration | str = "nv_full", *, exact_fp16: bool = False
    ) -> None:
        """Create the machine and its recorder."""
        self._recorders: Final[list[TraceRecorder]] = []
        super().__init__(configuration, exact_fp16=exact_fp16, connect=self._connect)
        self._recorded: Final[dict[int, tuple[PhysicalRegion, Bytes | None]]] = {}
        """Allocated regions by address, with their last recorded contents."""

    def _connect(self, machine: Machine) -> tuple[RegisterBus, DmaMemory]:
        recorder = TraceRecorder(machine, machine.memory, machine.configuration)
        self._recorders.append(recorder)
        return recorder, recorder.memory

    @override
    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> PhysicalRegion:
        region = super().allocate(instance, size, heap)
        self._recorded[region.address] = (region, None)
        return region

    @override
    def release(self, instance: int, region: PhysicalRegion, /) -> None:
        super().release(instance, region)
        del self._recorded[region.address]

    @override
    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task and record it.

        Raises:
            NvdlaError: The code of the failure.
        """
        recorder = self._recorders[instance]
        for region, content in list(self._recorded.values()):
            if content is None or not np.array_equal(content, region.data):
                recorder.record_memory(*region.at(0), region.data.nbytes)
                self._recorded[region.address] = (region, region.data.copy())
        super().execute(instance, task)
        for region, content in list(self._recorded.values()):
            if content is not None and not np.array_equal(content, region.data):
                recorder.record_check(*region.at(0), region.data.nbytes)
                self._recorded[region.address] = (region, region.data.copy())

    def write_trace(self, path: str | Path) -> None:
        """Write the trace, as ``.cfg`` or ``.txn`` by its suffix, and its data files beside it.

        Raises:
            NvdlaError: BAD_PARAMETER if the path has another suffix; NOT_SUPPORTED if the trace
                language cannot express an access.
            SmeltError: If a file cannot be written.
        """
        self._recorders[0].write_trace(path)
