"""Counts what a serialised message holds, before protobuf makes objects of it.

An empty message is two bytes on the wire and hundreds in memory, so a limit on bytes alone does
not bound what a file takes.
"""

from __future__ import annotations

import functools
import heapq
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from smelt.errors import ModelFormatError
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10
_LARGEST_NUMBER = (1 << 29) - 1
"""Of a field, as protobuf has it; the least is 1."""
_LEAST_MESSAGE = 2
"""Bytes of a field that is an empty message: its tag and its length."""


def check_counts(data: bytes, message: Message) -> None:
    """Check how many messages and fields ``data`` holds, which ``message`` is to be read from.

    The longest messages are opened first, and only while those that are left are long enough to
    hold too many: weights are passed over, and an honest file costs little.

    Raises ModelFormatError: it holds too many. Raises DecodeError: it cannot be read.
    """
    messages = fields = 0
    unread = len(data)
    # protobuf's stubs have two types of descriptors, by how it is built.
    closed: list[tuple[int, int, Any]] = [(-unread, 0, message.DESCRIPTOR)]
    while closed and messages + unread // _LEAST_MESSAGE > Limit.MAX_MODEL_MESSAGES.most:
        length, start, kind = heapq.heappop(closed)
        unread += length
        members = _member_messages(kind)
        for number, begin, size in _walk(data, start, start - length):
            fields += 1
            if fields > Limit.MAX_MODEL_FIELDS.most:
                raise _excess(Limit.MAX_MODEL_FIELDS, fields)
            member = members.get(number) if size >= 0 else None
            if member is not None:
                messages += 1
                if messages > Limit.MAX_MODEL_MESSAGES.most:
                    raise _excess(Limit.MAX_MODEL_MESSAGES, messages)
                if size:
                    unread += size
                    heapq.heappush(closed, (-size, begin, member))


@functools.cache
def _member_messages(kind: Any) -> dict[int, Any]:
    """Descriptors of the messages that a message's fields hold, by the fields' numbers."""
    found = {field.number: field.message_type for field in kind.fields}
    return {number: member for number, member in found.items() if member is not None}


def _walk(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field's number, where its bytes begin, and how many; -1 for a number."""
    while position < end:
        tag, position = _varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if (
            not 0 < number <= _LARGEST_NUMBER
        ):  # zeros that fill a file would be fields, two bytes each
            raise DecodeError(f"a field has the invalid number {number}, at byte {position}")
        if wire == _VARINT:
            _, position = _varint(data, position, end)
            yield number, position, -1
            continue
        if wire == _BYTES:
            size, position = _varint(data, position, end)
        elif wire in _WIDTHS:
            size = _WIDTHS[wire]
        else:
            raise DecodeError(f"a field has the unknown wire type {wire}, at byte {position}")
        if size > end - position:
            raise DecodeError(
                f"a field has {size} bytes where {end - position} are left, at byte {position}"
            )
        yield number, position, size if wire == _BYTES else -1
        position += size


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = 0
    for shift, byte in enumerate(data[position : min(end, position + _VARINT_BYTES)]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    raise DecodeError(f"a varint has no end, at byte {position}")


def _excess(limit: Limit, found: int) -> ModelFormatError:
    return ModelFormatError(
        f"the ONNX model has at least {limit.excess(found)}; the file is damaged or malicious"
    )
