"""What a trace does, whichever text it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from smelt.nvdla._protocols import MemorySpace


@dataclass(frozen=True, slots=True)
class FillMemory:
    """Set memory to one value."""

    line: int
    space: MemorySpace
    address: int
    size_bytes: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Copy a file to memory."""

    line: int
    space: MemorySpace
    address: int
    file: str


@dataclass(frozen=True, slots=True)
class WriteRegister:
    """Set a register."""

    line: int
    address: int
    value: int


@dataclass(frozen=True, slots=True)
class ReadRegister:
    """Read a register and compare some of its bits."""

    line: int
    address: int
    mask: int
    expected: int
    comparison: str = "=="


@dataclass(frozen=True, slots=True)
class AwaitInterrupt:
    """Wait for an interrupt: that of one engine's group, which is then cleared, or any."""

    line: int
    field: str | None = None
    """The field of GLB.S_INTR_STATUS, or None for any interrupt."""


@dataclass(frozen=True, slots=True)
class CheckCrc:
    """Compare the CRC-32 of memory."""

    line: int
    space: MemorySpace
    address: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class CheckFile:
    """Compare memory with a file."""

    line: int
    space: MemorySpace
    address: int
    size_bytes: int
    file: str


Command: TypeAlias = (
    FillMemory | LoadMemory | WriteRegister | ReadRegister | AwaitInterrupt | CheckCrc | CheckFile
)
