"""Small cubins, written byte by byte: what their sections say, and no instruction of use."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_HEADER: Final = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_CUDA: Final = 190
_SYMBOL_TABLE: Final = 2
_WITHOUT_CONTENT: Final = 8
_LOADED: Final = 1
_REGISTERS, _FRAME, _STACK = 0x2F, 0x11, 0x12


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a cubin shall say of a kernel."""

    name: str
    registers: int = 32
    shared_bytes: int = 0
    frame_bytes: int = 0
    code_bytes: int = 128


def make_cubin(*kernels: Kernel, reserves: bool = False) -> bytes:
    """A cubin of these kernels; with ``reserves``, shared memory includes the system's part."""
    names, entries = b"\0", b"\0"
    symbols, info = _SYMBOL.pack(0, 0, 0, 0, 0, 0), b""
    for number, kernel in enumerate(kernels, 1):
        symbols += _SYMBOL.pack(len(entries), 0x12, 0x10, 5, 0, kernel.code_bytes)
        entries += kernel.name.encode() + b"\0"
        detail = ((_REGISTERS, kernel.registers), (_FRAME, kernel.frame_bytes), (_STACK, 0))
        info += b"".join(struct.pack("<BBHII", 4, kind, 8, number, value) for kind, value in detail)
    info += struct.pack("<BBH", 3, 0x1B, 255)
    # (name, kind, content, size where there is no content, table of names)
    rows: list[tuple[str, int, bytes, int, int]] = [
        ("", 0, b"", 0, 0),
        (".strtab", 3, entries, 0, 0),
        (".symtab", _SYMBOL_TABLE, symbols, 0, 1),
        (".nv.info", 0x70000000, info, 0, 2),
    ]
    for kernel in kernels:
        rows.append((f".text.{kernel.name}", 1, bytes(kernel.code_bytes), 0, 2))
        rows.append((f".nv.shared.{kernel.name}", _WITHOUT_CONTENT, b"", kernel.shared_bytes, 0))
    if reserves:
        rows.append((".nv.shared.reserved.0", _WITHOUT_CONTENT, b"", 0, 0))
    rows.append((".shstrtab", 3, b"", 0, 0))
    places: list[int] = []
    for name, *_ in rows:
        places.append(len(names))
        names += name.encode() + b"\0"
    body, table = b"", b""
    for place, (name, kind, content, size, link) in zip(places, rows, strict=True):
        held = names if name == ".shstrtab" else content
        where = _HEADER.size + len(body)
        table += _SECTION.pack(place, kind, 0, 0, where, size or len(held), link, 0, 1, 0)
        body += held
    start = _HEADER.size + len(body)
    # The second says only how much memory to keep free.
    segments = [(_LOADED, 5, _HEADER.size, 0, 0, len(body), len(body), 8), (_LOADED, 6) + (0,) * 6]
    header = _HEADER.pack(
        *(b"\x7fELF", 2, 1, 2, _CUDA, 1, 0, start + len(table), start, 0, 64),
        *(_SEGMENT.size, len(segments), 64, len(rows), len(rows) - 1),
    )
    return header + body + table + b"".join(_SEGMENT.pack(*row) for row in segments)
