"""Linker of objects into one image: code, then constants, with every reference resolved.

The image needs no loader. It is mapped at any page boundary and never written again: it has no
writable data, no table of addresses and no undefined symbols. Equal objects in equal order give
equal images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu import _elf as elf
from smelt.backends.cpu._relocate import relocate_aarch64, relocate_x86_64
from smelt.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
                    "writable; keep state in operands or scratch memory, and constants constant"
                )
            if bool(section.flags & elf.SHF_EXECUTE) != wants_code:
                continue
            align = max(section.align, _CODE_ALIGN if wants_code else 1)
            if align > _PAGE_BYTES:
                raise BuildError(f"section {section.name} requires an alignment of {align} bytes")
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
