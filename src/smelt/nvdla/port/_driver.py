"""What stands below the portability layer: devices, their memory, and something that runs tasks.

The kernel-mode driver of the model implements it; tests implement it with a recorder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla.port._types import NvDlaHeap

if TYPE_CHECKING:
    from smelt.nvdla.port._types import Bytes, DeviceHardware


class Region(NamedTuple):
    """Pinned memory, at one physical address."""

    address: int
    data: Bytes
    heap: NvDlaHeap

    def at(self, offset: int) -> PhysicalAddress:
        """A place in it."""
        space = MemorySpace.SRAM if self.heap is NvDlaHeap.SRAM else MemorySpace.DRAM
        return PhysicalAddress(space, self.address + offset)


class PhysicalAddress(NamedTuple):
    """A place as the accelerator sees it."""

    space: MemorySpace
    address: int


@dataclass(frozen=True, slots=True)
class PhysicalTask:
    """A task whose address list is physical."""

    task_id: int
    addresses: tuple[PhysicalAddress, ...]
    interface_version: tuple[int, int, int]


class Driver(Protocol):
    """Devices of one host. Every failure is an NvdlaError."""

    @property
    def num_devices(self) -> int:
        """How many instances there are."""
        ...

    @property
    def hardware(self) -> DeviceHardware | None:
        """What the instances are; None when that is not known."""
        ...

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> Region:
        """Pin zeroed memory. Raises NvdlaError(INSUFFICIENT_MEMORY)."""
        ...

    def release(self, instance: int, region: Region, /) -> None:
        """Give memory back."""
        ...

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task to its end."""
        ...
