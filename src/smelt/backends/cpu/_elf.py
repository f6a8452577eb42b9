"""Reader of the part of the ELF format that LLVM's relocatable objects use."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from smelt.errors import InternalError
from smelt.signal_errors import pass_on_handler_error

# Names and numbers of the ELF specification (elf.h).
SHT_RELA: Final = 4
SHT_NOBITS: Final = 8
SHF_WRITE: Final = 1
SHF_ALLOC: Final = 2
SHF_EXECUTE: Final = 4
STB_LOCAL: Final = 0
STB_WEAK: Final = 2
STT_FUNCTION: Final = 2
MACHINES: Final = {62: "x86_64", 183: "aarch64"}
"""Architecture by ELF machine number (e_machine)."""

_HEADER: Final = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELA: Final = struct.Struct("<QIIq")


@dataclass(frozen=True, slots=True)
class Relocation:
    """A reference in a section whose value depends on the address of a symbol."""

    offset: int
    """Byte offset of the reference in its section."""
    kind: int
    symbol: int
    """Index of the symbol in the object's symbol table."""
    addend: int


@dataclass(frozen=True, slots=True)
class Section:
    """A section with its content and relocations."""

    name: str
    kind: int
    flags: int
    align: int
    content: bytes
    relocations: tuple[Relocation, ...] = ()


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """A symbol of an object, or the start of a section; section 0 means that it is undefined."""

    name: str
    section: int
    offset: int
    binding: int
    kind: int


@dataclass(frozen=True, slots=True)
class ElfObject:
    """A relocatable object file."""

    architecture: str
    sections: tuple[Section, ...]
    symbols: tuple[ElfSymbol, ...]


def parse_object(data: bytes) -> ElfObject:
    """Read a little-endian ELF64 object, as LLVM writes them.

    Raises:
        InternalError: the bytes are not such an object. Objects come from LLVM in this
            process or from a sealed cache.
    """
    try:
        return _parse(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        pass_on_handler_error(error)
        raise InternalError(f"LLVM emitted an object that cannot be read: {error}") from error


def _parse(data: bytes) -> ElfObject:
    """Read the sections, symbols and relocations of an object."""
    header: tuple[Any, ...] = _HEADER.unpack_from(data)
    magic, bits, order = header[:3]
    kind, machine, table, count, names = header[5], header[6], header[10], header[16], header[17]
    if (magic, bits, order, kind) != (b"\x7fELF", 2, 1, 1) or machine not in MACHINES:
        raise InternalError("LLVM did not emit an ELF64 object")
    rows: list[tuple[int, ...]] = [
        _SECTION.unpack_from(data, table + index * _SECTION.size) for index in range(count)
    ]
    texts = _content(data, rows[int(names)])
    relocations: dict[int, tuple[Relocation, ...]] = {}
    symbols: tuple[ElfSymbol, ...] = ()
    for row in rows:
        if row[1] == SHT_RELA:
            relocations[row[7]] = tuple(
                Relocation(offset, kind, symbol, addend)
                for offset, kind, symbol, addend in _RELA.iter_unpack(_content(data, row))
            )
        elif row[1] == 2:
            symbols = _symbols(_content(data, row), _content(data, rows[row[6]]))
    sections = tuple(
        Section(
            _text(texts, row[0]), row[1], row[2], max(row[8], 1), _content(data, row),
            relocations.get(index, ()),
        )
        for index, row in enumerate(rows)
    )  # fmt: skip
    return ElfObject(MACHINES[machine], sections, symbols)


def _symbols(table: bytes, names: bytes) -> tuple[ElfSymbol, ...]:
    """Return the symbols of a symbol table."""
    return tuple(
        ElfSymbol(_text(names, name), section, value, info >> 4, info & 15)
        for name, info, _, section, value, _ in _SYMBOL.iter_unpack(table)
    )


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    """Return the bytes of a section, zeros for one without content in the file."""
    if row[1] == SHT_NOBITS:
        return bytes(row[5])
    content = data[row[4] : row[4] + row[5]]
    if len(content) != row[5]:
        raise InternalError("LLVM emitted a truncated object")
    return content


def _text(table: bytes, start: int) -> str:
    """Return the null-terminated string at ``start`` of a string table."""
    return table[start : table.index(0, start)].decode()
