"""Counts of messages and fields in serialised data, checked before protobuf parses it.

An empty message takes two bytes in the file and hundreds of bytes in memory, so a limit of the
file's size does not limit the memory.
"""

from __future__ import annotations

import functools
import heapq
from typing import TYPE_CHECKING, Any

from smelt.errors import ModelFormatError
from smelt.importers._protobuf_wire import BYTES, read_field
from smelt.types import Limit

if TYPE_CHECKING:
    from google.protobuf.message import Message

_MIN_MESSAGE_BYTES = 2
"""Size in bytes of a field that holds an empty message: its tag and its length."""


def check_counts(data: bytes, message: Message) -> None:
    """Check how many messages and fields serialised data of the type of ``message`` contains.

    The longest messages are scanned first, and only while the remaining bytes could hold too many
    messages. Weights are therefore skipped, and valid files are checked quickly.

    Raises:
        ModelFormatError: the data contains too many messages or fields.
        WireError: the data is malformed.
    """
    messages = fields = 0
    unread = len(data)
    # Any, because protobuf's stubs have two descriptor types, depending on its implementation.
    unscanned: list[tuple[int, int, Any]] = [(-unread, 0, message.DESCRIPTOR)]
    while unscanned and messages + unread // _MIN_MESSAGE_BYTES > Limit.MAX_MODEL_MESSAGES.most:
        length, start, descriptor = heapq.heappop(unscanned)
        unread += length
        members = _member_messages(descriptor)
        position, end = start, start - length
        while position < end:
            number, wire, size, position = read_field(data, position, end)
            fields += 1
            if fields > Limit.MAX_MODEL_FIELDS.most:
                raise _excess(Limit.MAX_MODEL_FIELDS, fields)
            member = members.get(number) if wire == BYTES else None
            if member is not None:
                messages += 1
                if messages > Limit.MAX_MODEL_MESSAGES.most:
                    raise _excess(Limit.MAX_MODEL_MESSAGES, messages)
                if size:
                    unread += size
                    heapq.heappush(unscanned, (-size, position - size, member))


@functools.cache
def _member_messages(descriptor: Any) -> dict[int, Any]:
    """Return the message types of a message's fields, by field number."""
    types = {field.number: field.message_type for field in descriptor.fields}
    return {number: member for number, member in types.items() if member is not None}


def _excess(limit: Limit, count: int) -> ModelFormatError:
    return ModelFormatError(
        f"the ONNX model has at least {limit.excess(count)}; the file is damaged or malicious"
    )
