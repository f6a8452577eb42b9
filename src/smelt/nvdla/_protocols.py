"""Interfaces between firmware and hardware, and the memory spaces and precisions of both.

The machine model, the trace recorder and real silicon implement `RegisterBus` and `DmaMemory`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

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


class Precision(IntEnum):
    """Type of an operation's elements; registers and descriptors use the same values."""

    INT8 = 0
    INT16 = 1
    FP16 = 2

    @property
    def size_bytes(self) -> int:
        """Size of one element in bytes."""
        return 1 if self is Precision.INT8 else 2


class PhysicalAddress(NamedTuple):
    """Address of a byte as the accelerator uses it."""

    space: MemorySpace
    address: int


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
