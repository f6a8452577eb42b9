"""Fields of serialised protobuf messages, for readers that need no schema.

Every length is checked against the remaining bytes before it is used.
"""

from __future__ import annotations

from typing import Final

from smelt.types import counted

VARINT: Final = 0
BYTES: Final = 2
_WIDTHS: Final = {1: 8, 5: 4}
"""Sizes in bytes of the numbers of fixed width, by wire type."""
_MAX_VARINT_BYTES: Final = 10
"""Largest number of bytes of an encoded 64-bit integer."""
_MAX_FIELD_NUMBER: Final = (1 << 29) - 1
"""Largest field number that protobuf allows; the smallest is 1."""


class WireError(Exception):
    """Serialised data is malformed."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem}, at byte {position}")
        self.problem = problem
        self.position = position


def read_field(data: bytes | memoryview, start: int, end: int) -> tuple[int, int, int, int]:
    """Return a field's number, its wire type, its content and the position after it.

    ``start`` is less than ``end``.
    The content of a varint is the integer; that of another field is the size of its bytes, which
    are those before the position.

    Raises:
        WireError: the field is malformed, or longer than the data.
    """
    tag, position = data[start], start + 1
    if tag >= 0x80:  # otherwise it is one byte, as most tags are
        tag, position = read_varint(data, start, end)
    number, wire = tag >> 3, tag & 7
    # Were 0 allowed, zero bytes would be valid fields of two bytes each.
    if not 0 < number <= _MAX_FIELD_NUMBER:
        raise WireError(f"a field has the invalid number {number}", start)
    if wire == VARINT:
        value, position = read_varint(data, position, end)
        return number, wire, value, position
    if wire == BYTES:
        size, position = read_varint(data, position, end)
    elif wire in _WIDTHS:
        size = _WIDTHS[wire]
    else:
        raise WireError(f"a field has the unknown wire type {wire}", start)
    if size > end - position:
        left = counted(end - position, "byte")
        raise WireError(
            f"a field declares {counted(size, 'byte')}, but the data has {left} left", start
        )
    return number, wire, size, position + size


def read_varint(data: bytes | memoryview, start: int, end: int) -> tuple[int, int]:
    """Return an integer of variable length, and the position after it.

    Raises:
        WireError: the integer has no end.
    """
    if start < end and data[start] < 0x80:
        return data[start], start + 1
    value = 0
    for index, byte in enumerate(data[start : min(end, start + _MAX_VARINT_BYTES)]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, start + index + 1
    raise WireError(f"a varint is cut off, or longer than {_MAX_VARINT_BYTES} bytes", start)
