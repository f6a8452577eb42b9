"""Interfaces between firmware and hardware: register bus, DMA memory and memory spaces.

The machine model, the trace recorder and real silicon implement them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MemorySpace(IntEnum):
    """Memory interface that a physical address belongs to.

    This is an enumeration that both protocols of this module use, not a protocol. Its values are
    those of the RAM_TYPE fields of the registers.
    """

    SRAM = 0
    """Secondary interface (CVIF), usually on-chip memory."""
    DRAM = 1
    """Primary interface (MCIF), system memory."""


class RegisterBus(Protocol):
    """The configuration space bus (CSB) and the interrupt line."""

    def read(self, address: int, /) -> int:
        """Return the 32-bit register at a byte address."""
        ...

    def write(self, address: int, value: int, /) -> None:
        """Set the 32-bit register at a byte address."""
        ...

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        """Wait until the interrupt line is asserted; return False after ``timeout_s`` seconds."""
        ...


class DmaMemory(Protocol):
    """Memory at physical addresses, in two memory spaces, as the accelerator accesses it."""

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        """Return a copy of a byte range.

        Raises:
            NvdlaError: INVALID_ADDRESS if part of the range lies outside memory.
        """
        ...

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        """Write a byte range.

        Raises:
            NvdlaError: INVALID_ADDRESS if part of the range lies outside memory; nothing is
                written then.
        """
        ...
