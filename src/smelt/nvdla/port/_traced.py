"""A modelled device whose register accesses are recorded, to be played again without software."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla.port._machine import MachineDriver
from smelt.nvdla.traces import TraceRecorder

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.nvdla._protocols import DmaMemory, RegisterBus
    from smelt.nvdla.hardware import Configuration, Machine
    from smelt.nvdla.port._driver import PhysicalTask, Region
    from smelt.nvdla.port._types import Bytes, DeviceHardware, NvDlaHeap


class TracedDriver:
    """`Driver` of one machine, recorded.

    Before a task the trace sets what software changed in memory since the last one; after it the
    trace compares what the task changed.
    """

    def __init__(
        self, configuration: Configuration | str = "nv_full", *, exact_fp16: bool = False
    ) -> None:
        """Make the machine and its recorder."""
        self._recorders: Final[list[TraceRecorder]] = []
        self._driver: Final = MachineDriver(
            configuration, exact_fp16=exact_fp16, connect=self._connect
        )
        self._known: Final[dict[int, tuple[Region, Bytes | None]]] = {}
        """Live memory by address, and what the trace last said it holds."""

    def _connect(self, machine: Machine) -> tuple[RegisterBus, DmaMemory]:
        recorder = TraceRecorder(machine, machine.memory, machine.configuration)
        self._recorders.append(recorder)
        return recorder, recorder.memory

    @property
    def num_devices(self) -> int:
        """How many instances there are: one."""
        return self._driver.num_devices

    @property
    def hardware(self) -> DeviceHardware:
        """What the instance is."""
        return self._driver.hardware

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machine, to look at what it counted."""
        return self._driver.machines

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> Region:
        """Pin zeroed memory. Raises NvdlaError(INSUFFICIENT_MEMORY)."""
        region = self._driver.allocate(instance, size, heap)
        self._known[region.address] = (region, None)
        return region

    def release(self, instance: int, region: Region, /) -> None:
        """Give memory back."""
        self._driver.release(instance, region)
        del self._known[region.address]

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task to its end, and record it."""
        recorder = self._recorders[instance]
        for region, content in list(self._known.values()):
            if content is None or not np.array_equal(content, region.data):
                recorder.record_memory(*region.at(0), region.data.nbytes)
                self._known[region.address] = (region, region.data.copy())
        self._driver.execute(instance, task)
        for region, content in list(self._known.values()):
            if content is not None and not np.array_equal(content, region.data):
                recorder.record_check(*region.at(0), region.data.nbytes)
                self._known[region.address] = (region, region.data.copy())

    def write_trace(self, path: str | Path) -> None:
        """Write the trace, as ``.cfg`` or ``.txn`` by its suffix, and its data files beside it.

        Raises:
            NvdlaError: BAD_PARAMETER, another suffix.
        """
        self._recorders[0].write_trace(path)
