"""Resources of the kernels in a cubin: registers, shared and local memory.

A cubin is an ELF object. The code of a kernel is in the section ``.text.NAME``, its static shared
memory in ``.nv.shared.NAME``; the section ``.nv.info`` has the attributes of all kernels, by their
symbols. Cubins come from untrusted files, so every offset and size is checked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_MACHINE: Final = 190
_SYMBOL_TABLE: Final = 2
_WITHOUT_CONTENT: Final = 8
"""Kind of a section without content, which only reserves memory."""
_FUNCTION: Final = 2
_ATTRIBUTE: Final = struct.Struct("<BBH")
_SIZED: Final = 4
"""Form of an attribute whose last field is the length of the data that follows; others have
none."""
_COUNT_OF_KERNEL: Final = struct.Struct("<II")
_FRAME_SIZE: Final = 0x11
_MIN_STACK_SIZE: Final = 0x12
_REGISTER_COUNT: Final = 0x2F
_RESERVED_BYTES: Final = 1024
"""Shared memory of each block that the system reserves: sections include it from Hopper on."""


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources of a kernel."""

    registers: int
    """Registers of a thread."""
    static_shared_bytes: int
    """Shared memory of a block in bytes, in addition to what a launch requests."""
    local_bytes: int
    """Local memory of a thread in bytes: spilled registers, and arrays that are indexed at run
    time."""
    code_bytes: int
    """Length of the instructions in bytes."""


@dataclass(frozen=True, slots=True)
class _Section:
    """Header of a section of an ELF file."""

    name: int
    """Offset of the name in the table of names."""
    kind: int
    offset: int
    size: int
    link: int
    info: int


def resources_of(cubin: bytes | memoryview, entry: str) -> KernelResources:
    """Return the resources of the kernel ``entry`` of a cubin.

    Raises:
        EngineFormatError: the code is not a cubin, is damaged, or has no such kernel.
    """
    try:
        return _Cubin(memoryview(cubin)).resources(entry)
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise EngineFormatError(f"the code of {entry!r} is not a valid cubin: {error}") from error


def check_is_whole(cubin: bytes | memoryview) -> None:
    """Check that no part of the code is missing: the driver would read beyond its end and crash.

    Raises:
        EngineFormatError: the code is not a cubin, or is damaged.
    """
    try:
        found = _Cubin(memoryview(cubin))
        for section in found.sections:
            if section.kind != _WITHOUT_CONTENT:
                found.content(section)
        if any(end > len(cubin) for end in found.segment_ends()):
            raise IndexError("a segment extends beyond the end of the code")
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise EngineFormatError(
            f"the code of {len(cubin)} bytes is not a valid cubin: {error}"
        ) from error


class _Cubin:
    """Sections of a cubin, from which the resources of its kernels are read."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        header: tuple[Any, ...] = _HEADER.unpack_from(data)
        if header[:3] != (b"\x7fELF", 2, 1) or header[4] != _MACHINE:
            raise EngineFormatError("the machine code is not a cubin")
        table, count = int(header[8]), int(header[14])
        rows = (_SECTION.unpack_from(data, table + n * _SECTION.size) for n in range(count))
        self.sections = [_Section(r[0], r[1], r[4], r[5], r[6], r[7]) for r in rows]
        self.segments: tuple[int, int, int] = (header[7], header[11], header[12])
        """Offset of the table of segments, the length of its entries, and their number."""
        self.names = bytes(self.content(self.sections[int(header[15])]))

    def resources(self, entry: str) -> KernelResources:
        code = self.find(f".text.{entry}")
        if code is None:
            raise EngineFormatError(f"the code has no kernel {entry!r}")
        attributes = self.attributes(self.symbol_of(entry))
        section = self.find(f".nv.shared.{entry}")
        shared = 0 if section is None else section.size
        if self.find(".nv.shared.reserved.0") is not None:
            shared = max(0, shared - _RESERVED_BYTES)
        stack = (attributes.get(kind, 0) for kind in (_FRAME_SIZE, _MIN_STACK_SIZE))
        return KernelResources(
            registers=attributes.get(_REGISTER_COUNT, code.info >> 24),
            static_shared_bytes=shared,
            local_bytes=max(stack),
            code_bytes=code.size,
        )

    def content(self, section: _Section) -> memoryview:
        end = section.offset + section.size
        if end > len(self.data):
            raise IndexError("a section extends beyond the end of the code")
        return self.data[section.offset : end]

    def segment_ends(self) -> Iterator[int]:
        """Yield the end of the content of each segment that has any."""
        table, length, count = self.segments
        if count and length != _SEGMENT.size:
            raise ValueError(f"its program headers have {length} bytes each, not {_SEGMENT.size}")
        for number in range(count):
            row: tuple[int, ...] = _SEGMENT.unpack_from(self.data, table + number * length)
            start, size = row[2], row[5]
            if size:
                yield start + size

    def find(self, name: str) -> _Section | None:
        wanted = name.encode() + b"\0"
        return next((s for s in self.sections if self.names.startswith(wanted, s.name)), None)

    def symbol_of(self, entry: str) -> int:
        """Return the number of the kernel among the symbols."""
        wanted = entry.encode() + b"\0"
        tables = [s for s in self.sections if s.kind == _SYMBOL_TABLE]
        for table in tables[:1]:
            names = bytes(self.content(self.sections[table.link]))
            for number, row in enumerate(_SYMBOL.iter_unpack(self.content(table))):
                if row[1] & 15 == _FUNCTION and names.startswith(wanted, row[0]):
                    return number
        raise EngineFormatError(f"the code has no symbol {entry!r}")

    def attributes(self, symbol: int) -> dict[int, int]:
        """Return the attributes of one kernel."""
        section = self.find(".nv.info")
        found = () if section is None else _attributes(self.content(section))
        return {kind: value for kind, owner, value in found if owner == symbol}


def _attributes(content: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (kind, symbol, value) of each attribute that is one number of one symbol."""
    position = 0
    while position < len(content):
        form, kind, size = _ATTRIBUTE.unpack_from(content, position)
        position += _ATTRIBUTE.size
        if form == _SIZED:
            if size == _COUNT_OF_KERNEL.size:
                symbol, value = _COUNT_OF_KERNEL.unpack_from(content, position)
                yield kind, symbol, value
            position += size
