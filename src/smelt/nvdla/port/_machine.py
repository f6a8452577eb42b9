"""The driver of modelled hardware: machines, their memory, and an engine scheduler for each."""

from __future__ import annotations

import bisect
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from smelt.nvdla._descriptor_codec import DescriptorLayout
from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.firmware import EngineScheduler, read_task
from smelt.nvdla.hardware import (
    AddressSpan,
    Configuration,
    Machine,
    TaskLimits,
    find_configuration,
)
from smelt.nvdla.port._driver import PhysicalAddress, PhysicalTask, Region
from smelt.nvdla.port._heap import PAGE_BYTES, PageHeap
from smelt.nvdla.port._types import DeviceHardware, NvDlaHeap

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla._protocols import DmaMemory, RegisterBus

DEFAULT_DRAM_BYTES: Final = 1 << 30
DEFAULT_SRAM_BYTES: Final = 4 << 20
DEFAULT_TIMEOUT_S: Final = 60.0
_DRAM_BASE: Final = 0x8000_0000
_SRAM_BASE: Final = 0x5000_0000


@dataclass(slots=True)
class _Instance:
    machine: Machine
    scheduler: EngineScheduler
    heaps: dict[NvDlaHeap, PageHeap]
    lock: threading.Lock = field(default_factory=threading.Lock)
    touched: dict[NvDlaHeap, int] = field(default_factory=dict[NvDlaHeap, int])
    """Up to where memory was ever given out; what lies beyond is zero still."""
    spans: dict[PhysicalAddress, AddressSpan] = field(
        default_factory=dict[PhysicalAddress, AddressSpan]
    )
    """What is allocated, in whole pages, by its first byte."""


class MachineDriver:
    """`Driver` of one or more machines of a configuration."""

    def __init__(
        self,
        configuration: Configuration | str = "nv_full",
        num_devices: int = 1,
        *,
        dram_bytes: int = DEFAULT_DRAM_BYTES,
        sram_bytes: int = DEFAULT_SRAM_BYTES,
        exact_fp16: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        connect: Callable[[Machine], tuple[RegisterBus, DmaMemory]] | None = None,
    ) -> None:
        """Make the machines; their memory costs nothing until it is used.

        Args:
            configuration: What hardware, or its name.
            num_devices: How many of it.
            dram_bytes: DRAM of each.
            sram_bytes: SRAM of each, where the configuration has that interface.
            exact_fp16: Compute fp16 convolutions as the carry-save adders do.
            timeout_s: After so long a task ends in an error.
            connect: Put something between the scheduler and a machine, such as a recorder.
        """
        if isinstance(configuration, str):
            configuration = find_configuration(configuration)
        if num_devices < 1:
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"{num_devices} devices are given; at least one is needed"
            )
        self.configuration: Final = configuration
        self._timeout_s: Final = timeout_s
        self._instances: Final = tuple(
            _make_instance(configuration, dram_bytes, sram_bytes, connect, exact_fp16=exact_fp16)
            for _ in range(num_devices)
        )

    @property
    def num_devices(self) -> int:
        """How many instances there are."""
        return len(self._instances)

    @property
    def hardware(self) -> DeviceHardware:
        """What the instances are."""
        return DeviceHardware(self.configuration.name, self.configuration.atom_bytes)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines, to look at what they counted."""
        return tuple(instance.machine for instance in self._instances)

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> Region:
        """Pin zeroed memory. Raises NvdlaError(INSUFFICIENT_MEMORY)."""
        owner = self._instances[instance]
        with owner.lock:
            pages = owner.heaps.get(heap)
            if pages is None:
                raise NvdlaError(
                    NvError.INSUFFICIENT_MEMORY,
                    f"{self.configuration.name} has no {heap.name}",
                )
            address = pages.allocate(size)
            space = MemorySpace.SRAM if heap is NvDlaHeap.SRAM else MemorySpace.DRAM
            memory = owner.machine.memory
            offset = address - memory.base(space)
            end = address + -(-size // PAGE_BYTES) * PAGE_BYTES
            pages_in_use = memory.view(space)[offset : end - memory.base(space)]
            if address < owner.touched.get(heap, 0):
                pages_in_use[:] = 0
            owner.touched[heap] = max(owner.touched.get(heap, 0), end)
            region = Region(address, pages_in_use[:size], heap)
            owner.spans[region.at(0)] = AddressSpan(space, address, end)
            return region

    def release(self, instance: int, region: Region, /) -> None:
        """Give memory back."""
        owner = self._instances[instance]
        with owner.lock:
            owner.heaps[region.heap].release(region.address)
            del owner.spans[region.at(0)]

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task to its end; one that fails leaves the machine as after a reset.

        It reaches the pages of the memory that its address list leads into, and nothing else; its
        engines read its descriptors, but do not write them.
        """
        owner = self._instances[instance]
        major, minor, _ = task.interface_version
        layout = DescriptorLayout.of_version(major, minor)
        limits = TaskLimits(
            _mapped_memory(owner, task), deadline_s=time.monotonic() + self._timeout_s
        )
        try:
            with owner.machine.limited(limits):
                described = read_task(owner.machine.memory, task.addresses, layout)
                owner.machine.protect(
                    [
                        AddressSpan(space, address, address + size)
                        for (space, address), size in described.extents()
                    ]
                )
                owner.scheduler.execute_task(
                    task.addresses, timeout_s=self._timeout_s, layout=layout
                )
        except BaseException as error:
            if not (isinstance(error, NvdlaError) and error.status is NvError.BUSY):
                owner.machine.reset()
            raise


def _mapped_memory(owner: _Instance, task: PhysicalTask) -> tuple[AddressSpan, ...]:
    """Return the allocations that a task's addresses lie in.

    Raises:
        NvdlaError: one lies in none (INVALID_ADDRESS).
    """
    with owner.lock:
        allocated = sorted(owner.spans.items())
    starts = [place for place, _ in allocated]
    mapped: set[AddressSpan] = set()
    for index, place in enumerate(task.addresses):
        at = bisect.bisect_right(starts, place) - 1
        if at < 0 or not allocated[at][1].holds(place):
            raise NvdlaError(
                NvError.INVALID_ADDRESS,
                f"address {index} of the task, {place.space.name} {place.address:#x}, is not in "
                "allocated memory",
            )
        mapped.add(allocated[at][1])
    return tuple(sorted(mapped))


def _make_instance(
    configuration: Configuration,
    dram_bytes: int,
    sram_bytes: int,
    connect: Callable[[Machine], tuple[RegisterBus, DmaMemory]] | None,
    *,
    exact_fp16: bool,
) -> _Instance:
    machine = Machine(
        configuration,
        dram_bytes,
        sram_bytes,
        dram_base=_DRAM_BASE,
        sram_base=_SRAM_BASE,
        exact_fp16=exact_fp16,
    )
    bus, memory = (machine, machine.memory) if connect is None else connect(machine)
    heaps = {NvDlaHeap.SYSTEM: PageHeap(_DRAM_BASE, dram_bytes, "DRAM")}
    if configuration.has_sram and sram_bytes:
        heaps[NvDlaHeap.SRAM] = PageHeap(_SRAM_BASE, sram_bytes, "SRAM")
    return _Instance(machine, EngineScheduler(bus, memory, configuration), heaps)
