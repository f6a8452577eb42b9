"""The vocabulary of the portability layer.

Source: seed "NVDLA runtime environment" and nvdla/sw, nvdla_inf.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

MAX_ADDRESSES_PER_TASK: Final = 6144
MAX_TASKS_PER_SUBMIT: Final = 24
SIZE_LIMIT_BYTES: Final = 1 << 32

Bytes: TypeAlias = "NDArray[np.uint8]"


class DeviceHardware(NamedTuple):
    """What a user of a device must know of its hardware."""

    configuration: str
    atom_bytes: int
    """Of a memory atom: feature tensors are packed by it."""


class NvDlaHeap(IntEnum):
    """Which memory to allocate from."""

    SYSTEM = 0
    """DRAM, behind the primary memory interface."""
    SRAM = 1
    """Memory behind the secondary interface."""


@dataclass(frozen=True, slots=True)
class NvDlaMemDesc:
    """A place in allocated memory."""

    handle: int
    size: int = 0
    """The bytes from there on; 0 for all that there are."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class NvDlaTask:
    """Work for a device: the addresses that its descriptors index, the first its network's."""

    task_id: int
    address_list: tuple[NvDlaMemDesc, ...]
    interface_version: tuple[int, int, int] = (0, 12, 0)
    """Of the descriptors: 0.11 and before, or 0.12 and after, are laid out differently."""

    @property
    def num_addresses(self) -> int:
        """How many addresses there are."""
        return len(self.address_list)


class PinnedMemory(NamedTuple):
    """What an allocation gives."""

    mem_handle: int
    data: Bytes
    """The memory itself, as this process sees it."""


class Port(Protocol):
    """What the user-mode driver asks of a platform. Every failure is an NvdlaError."""

    def initialize(self) -> int:
        """Start a session, and give its handle."""
        ...

    def destroy(self, session_handle: int, /) -> None:
        """End a session: close its devices and free their memory."""
        ...

    def open(self, session_handle: int, instance: int, /) -> int:
        """Open a device instance, and give its handle."""
        ...

    def close(self, session_handle: int, device_handle: int, /) -> None:
        """Close a device and free what was allocated on it."""
        ...

    def submit(
        self, session_handle: int, device_handle: int, tasks: Sequence[NvDlaTask], /
    ) -> None:
        """Run tasks one after the other; return when the last has ended."""
        ...

    def alloc_mem(
        self, session_handle: int, device_handle: int, size: int, heap: NvDlaHeap, /
    ) -> PinnedMemory:
        """Allocate zeroed memory that both this process and the engines reach."""
        ...

    def free_mem(
        self, session_handle: int, device_handle: int, mem_handle: int, data: Bytes, size: int, /
    ) -> None:
        """Free memory of `alloc_mem`."""
        ...

    def debug_printf(self, message: str, /, *args: object) -> None:
        """Write to the debug console."""
        ...
