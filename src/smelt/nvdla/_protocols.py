"""What firmware talks to: registers and memory, of a model, a trace or real silicon."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MemorySpace(IntEnum):
    """The memory interface that an address belongs to, by the numbers of the RAM_TYPE fields."""

    SRAM = 0
    """The secondary interface (CVIF), usually on-chip memory."""
    DRAM = 1
    """The primary interface (MCIF), system memory."""


class RegisterBus(Protocol):
    """The configuration space bus (CSB) and the interrupt line."""

    def read(self, address: int, /) -> int:
        """Return the 32-bit register at a byte address."""
        ...

    def write(self, address: int, value: int, /) -> None:
        """Set the 32-bit register at a byte address."""
        ...

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        """Wait until the interrupt line is up; False when ``timeout_s`` seconds have passed."""
        ...


class DmaMemory(Protocol):
    """Memory as the accelerator sees it: physical addresses in two spaces."""

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        """Return bytes. Raises NvdlaError(INVALID_ADDRESS): some lie outside."""
        ...

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        """Set bytes. Raises NvdlaError(INVALID_ADDRESS): some lie outside; then none is set."""
        ...
