"""Linker of objects into one image: code, then constants, with every reference resolved.

The image needs no loader. It is mapped at any page boundary and never written again: it has no
writable data, no table of addresses and no undefined symbols. Equal objects in equal order give
equal images.

Relocations of x86-64 and AArch64: the value that each kind writes into the image.

Only kinds that do not depend on the address of the image are supported, so a linked image is
position-independent. A load from the global offset table becomes the computation of the address
itself, because an image has no such table and contains every symbol.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from smelt.backends.cpu import _elf as elf
from smelt.errors import BuildError

_PAGE_BITS: Final = 12
"""log2 of the page size in bytes that ADRP instructions count in."""

_X86_PC64: Final = 24
_X86_PC32: Final = 2
_X86_PLT32: Final = 4
_X86_GOT: Final = frozenset({9, 41, 42, 43})
"""GOTPCREL, GOTPCRELX, REX_GOTPCRELX and CODE_4_GOTPCRELX."""

_ARM_PREL64: Final = 260
_ARM_PREL32: Final = 261
_ARM_ADR_PREL_LO21: Final = 274
_ARM_ADR_PREL_PG_HI21: Final = 275
_ARM_ADD_ABS_LO12: Final = 277
_ARM_JUMP26: Final = 282
_ARM_CALL26: Final = 283
_ARM_LD_PREL_LO19: Final = 273
_ARM_LDST_SHIFT: Final = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}
"""log2 of the access size in bytes of each LDSTn_ABS_LO12_NC relocation."""
_ARM_ADR_GOT_PAGE: Final = 311
_ARM_LD64_GOT_LO12: Final = 312


def relocate_x86_64(image: bytearray, place: int, kind: int, target: int, addend: int) -> None:
    """Apply one relocation of x86-64 at ``place``, a byte offset in the image.

    Raises:
        BuildError: the kind depends on the image's address, or its instruction is not supported.
    """
    if kind == _X86_PC64:
        struct.pack_into("<q", image, place, target + addend - place)
        return
    if kind in _X86_GOT:
        _relax_got_load(image, place)
    elif kind not in {_X86_PC32, _X86_PLT32}:
        raise BuildError(
            f"the code is not position-independent: x86-64 relocation type {kind} is absolute or "
            "unknown"
        )
    struct.pack_into("<i", image, place, target + addend - place)


def _relax_got_load(image: bytearray, place: int) -> None:
    """Replace an instruction that loads an address from the GOT by one that computes it."""
    opcode, modrm = image[place - 2], image[place - 1]
    if opcode == 0x8B and modrm & 0xC7 == 0x05:  # mov symbol@GOT(%rip), reg  ->  lea
        image[place - 2] = 0x8D
    elif opcode == 0xFF and modrm == 0x15:  # call *symbol@GOT(%rip)  ->  addr32 call
        image[place - 2 : place] = b"\x67\xe8"
    else:
        raise BuildError("an instruction that loads an address from the GOT is not supported")


def relocate_aarch64(image: bytearray, place: int, kind: int, target: int, addend: int) -> None:
    """Apply one relocation of AArch64 at ``place``, a byte offset in a page-aligned image.

    Raises:
        BuildError: the kind depends on the address of the image, or the target is out of range.
    """
    value = target + addend
    if kind == _ARM_PREL64:
        struct.pack_into("<q", image, place, value - place)
    elif kind == _ARM_PREL32:
        struct.pack_into("<i", image, place, value - place)
    elif kind in _ARM_LDST_SHIFT:
        _set_bits(image, place, 10, 12, (value & 0xFFF) >> _ARM_LDST_SHIFT[kind])
    elif kind == _ARM_LD64_GOT_LO12:
        _load_to_add(image, place, value)
    elif kind in _ARM_FIELDS:
        _ARM_FIELDS[kind](image, place, value)
    else:
        raise BuildError(
            f"the code is not position-independent: aarch64 relocation type {kind} is absolute or "
            "unknown"
        )


def _call(image: bytearray, place: int, value: int) -> None:
    _set_signed(image, place, 0, 26, (value - place) >> 2)


def _page(image: bytearray, place: int, value: int) -> None:
    _set_adr(image, place, (value >> _PAGE_BITS) - (place >> _PAGE_BITS))


def _adr(image: bytearray, place: int, value: int) -> None:
    _set_adr(image, place, value - place)


def _low12(image: bytearray, place: int, value: int) -> None:
    _set_bits(image, place, 10, 12, value & 0xFFF)


def _literal(image: bytearray, place: int, value: int) -> None:
    _set_signed(image, place, 5, 19, (value - place) >> 2)


_ARM_FIELDS: Final[dict[int, Callable[[bytearray, int, int], None]]] = {
    _ARM_CALL26: _call,
    _ARM_JUMP26: _call,
    _ARM_ADR_PREL_PG_HI21: _page,
    _ARM_ADR_GOT_PAGE: _page,
    _ARM_ADR_PREL_LO21: _adr,
    _ARM_ADD_ABS_LO12: _low12,
    _ARM_LD_PREL_LO19: _literal,
}
"""Function that writes the instruction field of each kind."""


def _load_to_add(image: bytearray, place: int, value: int) -> None:
    """Replace ``ldr x, [x, :got_lo12:s]`` by ``add x, x, :lo12:s``."""
    (word,) = struct.unpack_from("<I", image, place)
    struct.pack_into("<I", image, place, 0x91000000 | word & 0x3FF)
    _low12(image, place, value)


def _set_adr(image: bytearray, place: int, value: int) -> None:
    """Write a signed 21-bit value into the split field of ADR and ADRP."""
    _check_reach(value, 21)
    _set_bits(image, place, 29, 2, value & 3)
    _set_bits(image, place, 5, 19, value >> 2)


def _set_signed(image: bytearray, place: int, start: int, width: int, value: int) -> None:
    """Write a signed value into a field of ``width`` bits from bit ``start`` on."""
    _check_reach(value, width)
    _set_bits(image, place, start, width, value)


def _set_bits(image: bytearray, place: int, start: int, width: int, value: int) -> None:
    """Write the low ``width`` bits of a value from bit ``start`` of the instruction on."""
    (word,) = struct.unpack_from("<I", image, place)
    mask = (1 << width) - 1
    struct.pack_into("<I", image, place, word & ~(mask << start) | (value & mask) << start)


def _check_reach(value: int, width: int) -> None:
    """Raise BuildError if a value does not fit into a signed field of ``width`` bits."""
    if not -(1 << width - 1) <= value < 1 << width - 1:
        raise BuildError("a branch target is out of range: the code is too large for aarch64")


_CODE_ALIGN: Final = 64
"""Alignment of functions and of the first constant, in bytes: a cache line."""
_PAGE_BYTES: Final = 4096
"""Alignment of a mapped image in bytes, and so the largest alignment of a section."""
_IGNORED: Final = (".eh_frame", ".note", ".llvm", ".comment")
"""Prefixes of the names of sections that are left out: unwinding tables and metadata."""
_RELOCATORS: Final[dict[str, Callable[[bytearray, int, int, int, int], None]]] = {
    "x86_64": relocate_x86_64,
    "aarch64": relocate_aarch64,
}
"""Function that applies a relocation, by architecture."""


@dataclass(slots=True)
class _Layout:
    """Positions of the sections of all objects in the image."""

    objects: list[elf.ElfObject]
    image: bytearray = field(default_factory=bytearray)
    section_offsets: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Offset in the image by object and section."""
    definitions: dict[str, int] = field(default_factory=dict[str, int])
    """Offset in the image by global symbol."""

    def sections(self) -> Iterator[tuple[int, int, elf.Section]]:
        """Yield object number, section number and section of everything that is loaded."""
        for number, obj in enumerate(self.objects):
            for index, section in enumerate(obj.sections):
                ignored = section.name.startswith(_IGNORED)
                if section.flags & elf.SHF_ALLOC and section.content and not ignored:
                    yield number, index, section


def link(objects: Sequence[bytes]) -> tuple[bytes, tuple[tuple[str, int], ...]]:
    """Link objects of one architecture.

    Returns:
        The image, and name and offset of each global function, sorted by name.

    Raises:
        BuildError: an object calls a function that no object defines, has writable data, defines
            a name that another object defines, or needs its absolute address.
    """
    layout = _Layout([elf.parse_object(data) for data in objects])
    if len({obj.architecture for obj in layout.objects}) > 1:
        raise BuildError("kernels for different architectures cannot be linked into one image")
    _place_sections(layout)
    functions = _define_symbols(layout)
    for number, index, section in layout.sections():
        for relocation in section.relocations:
            _relocate(layout, number, layout.section_offsets[number, index], relocation)
    return bytes(layout.image), tuple(sorted(functions))


def _place_sections(layout: _Layout) -> None:
    """Copy all sections into the image, code first."""
    rows = list(layout.sections())
    for wants_code in (True, False):
        # Constants start on a new cache line: code is fetched as instructions, constants as data.
        _pad(layout.image, _CODE_ALIGN)
        for number, index, section in rows:
            if section.flags & elf.SHF_WRITE:
                raise BuildError(
                    f"{_first_function(layout.objects[number])}: section {section.name} is "
                    "writable; declare constants as constant, and keep state in operands or "
                    "scratch memory"
                )
            if bool(section.flags & elf.SHF_EXECUTE) != wants_code:
                continue
            align = max(section.align, _CODE_ALIGN if wants_code else 1)
            if align > _PAGE_BYTES:
                raise BuildError(
                    f"{_first_function(layout.objects[number])}: section {section.name} requires "
                    f"an alignment of {align} bytes; at most {_PAGE_BYTES} are supported"
                )
            _pad(layout.image, align)
            layout.section_offsets[number, index] = len(layout.image)
            layout.image += section.content
    _pad(layout.image, _CODE_ALIGN)


def _pad(image: bytearray, align: int) -> None:
    """Append zeros to the image up to a multiple of ``align`` bytes."""
    image += bytes(-len(image) % align)


def _define_symbols(layout: _Layout) -> list[tuple[str, int]]:
    """Record the offset of every global symbol, and return the functions among them."""
    functions: list[tuple[str, int]] = []
    for number, obj in enumerate(layout.objects):
        for symbol in obj.symbols:
            section_offset = layout.section_offsets.get((number, symbol.section))
            if symbol.binding == elf.STB_LOCAL or section_offset is None:
                continue
            if symbol.name in layout.definitions:
                if symbol.binding == elf.STB_WEAK:
                    continue
                raise BuildError(f"the function {symbol.name!r} is defined by two kernels")
            layout.definitions[symbol.name] = section_offset + symbol.offset
            if symbol.kind == elf.STT_FUNCTION:
                functions.append((symbol.name, section_offset + symbol.offset))
    return functions


def _relocate(layout: _Layout, number: int, start: int, relocation: elf.Relocation) -> None:
    """Apply one relocation of a section that starts at offset ``start`` of the image."""
    obj = layout.objects[number]
    symbol = obj.symbols[relocation.symbol]
    if symbol.binding != elf.STB_LOCAL:
        target = layout.definitions.get(symbol.name)
    else:
        section_offset = layout.section_offsets.get((number, symbol.section))
        target = None if section_offset is None else section_offset + symbol.offset
    if target is None:
        raise BuildError(
            f"{_first_function(obj)} needs {symbol.name!r}, which no kernel defines; an image "
            "cannot call functions outside of it, so define the function in LLVM IR"
        )
    try:
        _RELOCATORS[obj.architecture](
            layout.image, start + relocation.offset, relocation.kind, target, relocation.addend
        )
    except BuildError as error:
        name = symbol.name or "a constant"
        raise BuildError(f"{_first_function(obj)} cannot reach {name!r}: {error}") from error


def _first_function(obj: elf.ElfObject) -> str:
    """Return the name of an object's first global function, for messages."""
    for symbol in obj.symbols:
        if symbol.kind == elf.STT_FUNCTION and symbol.binding != elf.STB_LOCAL:
            return symbol.name
    return "a kernel"
