"""Interfaces of the portability layer and of the drivers below it, with their types and limits.

Source: "NVDLA runtime environment" and nvdla/sw, nvdla_inf.h.

`MachineDriver` implements a driver for modelled hardware and `TracedDriver` for recorded traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from smelt.nvdla._protocols import MemorySpace, PhysicalAddress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAX_ADDRESSES_PER_TASK: Final = 6144
"""Maximum length of a task's address list."""
MAX_TASKS_PER_SUBMIT: Final = 24
"""Maximum number of tasks in a submission."""
SIZE_LIMIT_BYTES: Final = 1 << 32
"""Size that allocations must stay below: sizes have 32 bits."""

Bytes: TypeAlias = "NDArray[np.uint8]"


class DeviceHardware(NamedTuple):
    """Properties of a device's hardware that its users need."""

    configuration: str
    atom_bytes: int
    """Size of a memory atom, which determines the layout of feature tensors."""


class NvDlaHeap(IntEnum):
    """Memory from which an allocation is made."""

    SYSTEM = 0
    """DRAM, behind the primary memory interface."""
    SRAM = 1
    """Memory behind the secondary interface."""

    @property
    def space(self) -> MemorySpace:
        """Memory space of the heap's addresses."""
        return MemorySpace.SRAM if self is NvDlaHeap.SRAM else MemorySpace.DRAM


@dataclass(frozen=True, slots=True)
class NvDlaMemDesc:
    """nvdla_mem_desc: a position in allocated memory."""

    handle: int
    size: int = 0
    """Number of bytes from the offset on; 0 for all bytes to the end of the memory."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class NvDlaTask:
    """Task for a device: the addresses that its descriptors refer to by index.

    The first address is that of the network descriptor.
    """

    task_id: int
    address_list: tuple[NvDlaMemDesc, ...]
    interface_version: tuple[int, int, int] = (0, 12, 0)
    """Firmware interface version of the descriptors; 0.12 changed their layout."""

    @property
    def num_addresses(self) -> int:
        """Length of the address list."""
        return len(self.address_list)


class PinnedMemory(NamedTuple):
    """Handle and contents of allocated memory."""

    mem_handle: int
    data: Bytes
    """The memory as an array in this process."""


class PhysicalRegion(NamedTuple):
    """Pinned memory that is contiguous from one physical address."""

    address: int
    data: Bytes
    heap: NvDlaHeap

    def at(self, offset: int) -> PhysicalAddress:
        """Return the physical address of a byte offset in the region."""
        return PhysicalAddress(self.heap.space, self.address + offset)


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

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> PhysicalRegion:
        """Allocate pinned, zeroed memory.

        Raises:
            NvdlaError: INSUFFICIENT_MEMORY.
        """
        ...

    def release(self, instance: int, region: PhysicalRegion, /) -> None:
        """Free memory of `allocate`."""
        ...

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        """Run one task; return when the task has ended."""
        ...
