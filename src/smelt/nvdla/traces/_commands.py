"""Commands of a register trace, independent of the trace language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from smelt.nvdla._protocols import MemorySpace


@dataclass(frozen=True, slots=True)
class FillMemory:
    """Fill a memory range with one byte value."""

    line: int
    space: MemorySpace
    address: int
    size_bytes: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Copy a data file to memory."""

    line: int
    space: MemorySpace
    address: int
    file: str


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Write a register by its byte address."""

    line: int
    address: int
    value: int


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Read a register by its byte address and compare the bits of a mask."""

    line: int
    address: int
    mask: int
    expected: int
    comparison: str = "=="


@dataclass(frozen=True, slots=True)
class AwaitInterrupt:
    """Wait for any interrupt, or for the interrupt of one engine's group and clear it."""

    line: int
    field: str | None = None
    """Field of GLB.S_INTR_STATUS to wait for, or None for any interrupt."""


@dataclass(frozen=True, slots=True)
class CheckCrc:
    """Compare the CRC-32 of a memory range with an expected value."""

    line: int
    space: MemorySpace
    address: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class CheckFile:
    """Compare a memory range with a data file."""

    line: int
    space: MemorySpace
    address: int
    size_bytes: int
    file: str


Command: TypeAlias = (
    FillMemory | LoadMemory | WriteRegister | ReadRegister | AwaitInterrupt | CheckCrc | CheckFile
)
