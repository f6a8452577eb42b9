"""Interface below the portability layer: devices, their memory and the execution of tasks.

`MachineDriver` implements it for modelled hardware and `TracedDriver` for recorded traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla.port._types import NvDlaHeap

if TYPE_CHECKING:
    from smelt.nvdla.port._types import Bytes, DeviceHardware


class Region(NamedTuple):
    """Pinned memory that is contiguous from one physical address."""

    address: int
    data: Bytes
    heap: NvDlaHeap

    def at(self, offset: int) -> PhysicalAddress:
        """Return the physical address of a byte offset in the region."""
        space = MemorySpace.SRAM if self.heap is NvDlaHeap.SRAM else MemorySpace.DRAM
        return PhysicalAddress(space, self.address + offset)


class PhysicalAddress(NamedTuple):
    """Address of a byte as the accelerator uses it."""

    space: MemorySpace
    address: int


@dataclass(frozen=True, slots=True)
class PhysicalTask:
    """A task whose address list holds physical addresses."""

    task_id: int
    addresses: tuple[PhysicalAddress, ...]
    interface_version: tuple[int, int, int]


class Driver(Protocol):
    """Devices of one host; every failure is an `NvdlaError`."""

    @property
    def num_devices(self) -> int:
        """Number of device instances."""
        ...

    @property
    def hardware(self) -> DeviceHardware | None:
        """Hardware of the device instances; None if it is not known."""
        ...

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> Region:
        """Allocate pinned, zeroed memory.

        Raises:
            NvdlaError: INSUFFICIENT_MEMORY.
        """
        ...

    def release(self, instance: int, region: Region, /) -> None:
        """Free memory of `allocate`."""
        ...

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task; return when the task has ended."""
        ...
