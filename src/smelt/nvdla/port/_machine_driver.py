"""Driver of modelled hardware: machines, pages of memory, and an engine scheduler for each."""

from __future__ import annotations

import bisect
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from smelt.nvdla._descriptor_codec import DescriptorVersion
from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.firmware import DEFAULT_TIMEOUT_S, EngineScheduler, read_task
from smelt.nvdla.hardware import (
    AddressSpan,
    Configuration,
    Machine,
    TaskAccessLimits,
    find_configuration,
)
from smelt.nvdla.port._interfaces import DeviceHardware, NvDlaHeap, PhysicalRegion, PhysicalTask
from smelt.types import require_instance, require_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla._protocols import DmaMemory, PhysicalAddress, RegisterBus

    Connect = Callable[[Machine], tuple[RegisterBus, DmaMemory]]

PAGE_BYTES: Final = 4096
"""Granularity of allocations in bytes."""
_bad_parameter: Final = NvError.BAD_PARAMETER.error
"""Return the failure of an invalid argument."""


class PageHeap:
    """First-fit allocator of pages; adjacent free ranges are merged."""

    def __init__(self, base: int, size_bytes: int, name: str = "memory") -> None:
        """Start with all pages free.

        Args:
            base: First address of the range; only whole pages of the range are used.
            size_bytes: Size of the range in bytes.
            name: Name of the memory in messages.
        """
        start = -(-base // PAGE_BYTES) * PAGE_BYTES
        end = max(start, (base + size_bytes) // PAGE_BYTES * PAGE_BYTES)
        self._name = name
        self._free: list[tuple[int, int]] = [(start, end)] if end > start else []
        self._used: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        """Number of free bytes, which need not be contiguous."""
        return sum(end - start for start, end in self._free)

    def allocate(self, size_bytes: int) -> int:
        """Allocate contiguous pages for a number of bytes and return their address.

        Raises:
            NvdlaError: INSUFFICIENT_MEMORY if no free range is large enough.
        """
        needed = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        for index, (start, end) in enumerate(self._free):
            if end - start >= needed:
                if end - start == needed:
                    del self._free[index]
                else:
                    self._free[index] = (start + needed, end)
                self._used[start] = start + needed
                return start
        raise NvError.INSUFFICIENT_MEMORY.error(
            f"cannot allocate {size_bytes} bytes of {self._name}: {self.free_bytes} bytes are "
            "free, and no contiguous block is large enough"
        )

    def release(self, address: int) -> None:
        """Free the pages of an allocation.

        Raises:
            NvdlaError: BAD_PARAMETER if there is no allocation at the address.
        """
        end = self._used.pop(address, None)
        if end is None:
            raise _bad_parameter(f"there is no allocation of {self._name} at {address:#x}")
        index = bisect.bisect(self._free, (address, end))
        start = address
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end))


DEFAULT_DRAM_BYTES: Final = 1 << 30
"""Default size of a machine's DRAM."""
DEFAULT_SRAM_BYTES: Final = 4 << 20
"""Default size of a machine's SRAM."""
_DRAM_BASE: Final = 0x8000_0000
"""Physical address of the first byte of DRAM."""
_SRAM_BASE: Final = 0x5000_0000
"""Physical address of the first byte of SRAM, as in the test bench of ``.txn`` traces."""


class _Instance:
    """A machine with its scheduler and its allocations."""

    def __init__(self, machine: Machine, connect: Connect | None) -> None:
        self.machine = machine
        bus, dma = (machine, machine.memory) if connect is None else connect(machine)
        self.scheduler = EngineScheduler(bus, dma, machine.configuration)
        memories = machine.memory.memories
        self.heaps = {
            heap: PageHeap(memory.base, memory.data.size, heap.space.name)
            for heap in NvDlaHeap
            if (memory := memories.get(heap.space)) is not None
        }
        self.lock = threading.Lock()
        self.allocated_end = dict.fromkeys(NvDlaHeap, 0)
        """End address of the memory that was ever allocated; memory beyond it is still zero."""
        self.spans: dict[PhysicalAddress, AddressSpan] = {}
        """Allocations in whole pages, by the address of their first byte."""


class MachineDriver:
    """`Driver` of one or more machines of the same configuration."""

    def __init__(
        self,
        configuration: Configuration | str = "nv_full",
        num_devices: int = 1,
        *,
        dram_bytes: int = DEFAULT_DRAM_BYTES,
        sram_bytes: int = DEFAULT_SRAM_BYTES,
        exact_fp16: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        connect: Connect | None = None,
    ) -> None:
        """Create the machines; the system commits their memory only when it is used.

        Args:
            configuration: The hardware configuration, or its name.
            num_devices: Number of machines.
            dram_bytes: Size of each machine's DRAM.
            sram_bytes: Size of each machine's SRAM, if the configuration has an SRAM interface.
            exact_fp16: Whether to compute fp16 convolutions bit for bit as the hardware.
            timeout_s: Maximum duration of a task in seconds; a longer task fails.
            connect: Function that returns the bus and memory through which the scheduler reaches
                a machine, such as those of a recorder.

        Raises:
            NvdlaError: BAD_PARAMETER if the configuration is unknown or there is no device.
        """
        if isinstance(configuration, str):
            configuration = find_configuration(configuration)
        require_instance(
            configuration,
            Configuration,
            "the configuration",
            _bad_parameter,
            "a Configuration or the name of one",
        )
        num_devices = require_int(num_devices, "the number of devices", _bad_parameter, minimum=1)
        self.configuration: Final = configuration
        self.hardware: Final = DeviceHardware(configuration.name, configuration.atom_bytes)
        """Hardware of the device instances."""
        self.num_devices: Final = num_devices
        """Number of device instances."""
        self._timeout_s: Final = timeout_s
        make = partial(Machine, configuration, dram_bytes, sram_bytes, exact_fp16=exact_fp16)
        self._instances: Final = tuple(
            _Instance(make(dram_base=_DRAM_BASE, sram_base=_SRAM_BASE), connect)
            for _ in range(num_devices)
        )
        self.machines: Final = tuple(instance.machine for instance in self._instances)
        """The machines, for reading their records and faults."""

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> PhysicalRegion:
        """Allocate pinned, zeroed memory.

        Raises:
            NvdlaError: INSUFFICIENT_MEMORY.
        """
        device = self._instances[instance]
        with device.lock:
            pages = device.heaps.get(heap)
            if pages is None:
                raise NvError.INSUFFICIENT_MEMORY.error(
                    f"this {self.configuration.name} machine has no {heap.name}; allocate from "
                    "SYSTEM, or create the machine from a configuration with SRAM and with "
                    "sram_bytes above 0"
                )
            address = pages.allocate(size)
            space = heap.space
            memory = device.machine.memory
            offset = address - memory.base(space)
            end = address + -(-size // PAGE_BYTES) * PAGE_BYTES
            pages_in_use = memory.view(space)[offset : end - memory.base(space)]
            if address < device.allocated_end[heap]:
                pages_in_use[:] = 0
            device.allocated_end[heap] = max(device.allocated_end[heap], end)
            region = PhysicalRegion(address, pages_in_use[:size], heap)
            device.spans[region.at(0)] = AddressSpan(space, address, end)
            return region

    def release(self, instance: int, region: PhysicalRegion, /) -> None:
        """Free memory of `allocate`."""
        device = self._instances[instance]
        with device.lock:
            device.heaps[region.heap].release(region.address)
            del device.spans[region.at(0)]

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task; reset the machine if the task fails.

        The task can access only the pages of the allocations that its address list refers to. Its
        engines can read its descriptors but not write them.

        Raises:
            NvdlaError: The code of the failure; BUSY if another task is running.
        """
        device = self._instances[instance]
        major, minor, _ = task.interface_version
        layout = DescriptorVersion.of_version(major, minor)
        limits = TaskAccessLimits(
            _mapped_memory(device, task), deadline_s=time.monotonic() + self._timeout_s
        )
        try:
            with device.machine.limited(limits):
                descriptors = read_task(device.machine.memory, task.addresses, layout)
                device.machine.protect(
                    [
                        AddressSpan(space, address, address + size)
                        for (space, address), size in descriptors.extents()
                    ]
                )
                device.scheduler.execute_task(
                    task.addresses, timeout_s=self._timeout_s, layout=layout
                )
        except BaseException as error:
            if not (isinstance(error, NvdlaError) and error.status is NvError.BUSY):
                device.machine.reset()
            raise


def _mapped_memory(device: _Instance, task: PhysicalTask) -> tuple[AddressSpan, ...]:
    """Return the allocations that contain a task's addresses.

    Raises:
        NvdlaError: INVALID_ADDRESS if an address is not in allocated memory.
    """
    with device.lock:
        allocated = sorted(device.spans.items())
    starts = [start for start, _ in allocated]
    mapped: set[AddressSpan] = set()
    for index, address in enumerate(task.addresses):
        at = bisect.bisect_right(starts, address) - 1
        byte = AddressSpan(*address, address.address + 1)
        if at < 0 or not allocated[at][1].contains(byte):
            raise NvError.INVALID_ADDRESS.error(
                f"address {index} of the task, {address.space.name} {address.address:#x}, is not "
                "in allocated memory"
            )
        mapped.add(allocated[at][1])
    return tuple(sorted(mapped))
