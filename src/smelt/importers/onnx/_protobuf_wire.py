"""Counts of messages and fields in serialised data, checked before protobuf parses it.

An empty message takes two bytes in the file and hundreds of bytes in memory, so a limit of the
file's size does not limit the memory.
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
_MAX_VARINT_BYTES = 10
"""Largest number of bytes of an encoded 64-bit integer."""
_MAX_FIELD_NUMBER = (1 << 29) - 1
"""Largest field number that protobuf allows; the smallest is 1."""
_MIN_MESSAGE_BYTES = 2
"""Size in bytes of a field that holds an empty message: its tag and its length."""


def check_counts(data: bytes, message: Message) -> None:
    """Check how many messages and fields serialised data of the type of ``message`` contains.

    The longest messages are scanned first, and only while the remaining bytes could hold too many
    messages. Weights are therefore skipped, and valid files are checked quickly.

    Raises:
        ModelFormatError: the data contains too many messages or fields.
        DecodeError: the data is malformed.
    """
    messages = fields = 0
    unread = len(data)
    # Any, because protobuf's stubs have two descriptor types, depending on its implementation.
    unscanned: list[tuple[int, int, Any]] = [(-unread, 0, message.DESCRIPTOR)]
    while unscanned and messages + unread // _MIN_MESSAGE_BYTES > Limit.MAX_MODEL_MESSAGES.most:
        length, start, descriptor = heapq.heappop(unscanned)
        unread += length
        members = _member_messages(descriptor)
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
                    heapq.heappush(unscanned, (-size, begin, member))


@functools.cache
def _member_messages(descriptor: Any) -> dict[int, Any]:
    """Return the message types of a message's fields, by field number."""
    types = {field.number: field.message_type for field in descriptor.fields}
    return {number: member for number, member in types.items() if member is not None}


def _walk(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, position and length of each field; the length of a number is -1."""
    while position < end:
        tag, position = _varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if (
            not 0 < number <= _MAX_FIELD_NUMBER
        ):  # otherwise zero bytes would be valid fields of two bytes each
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
    for shift, byte in enumerate(data[position : min(end, position + _MAX_VARINT_BYTES)]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    raise DecodeError(f"a varint has no end, at byte {position}")


def _excess(limit: Limit, count: int) -> ModelFormatError:
    return ModelFormatError(
        f"the ONNX model has at least {limit.excess(count)}; the file is damaged or malicious"
    )
