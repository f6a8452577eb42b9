"""Messages between a user-mode driver and the process that has the driver and the hardware.

A frame is a head and a payload; a payload is a structure, then bytes. Everything is checked before
use: a peer that breaks the protocol loses its connection and nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from smelt.nvdla._descriptor_codec import Descriptor, at
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.port._types import (
    MAX_ADDRESSES_PER_TASK,
    MAX_TASKS_PER_SUBMIT,
    NvDlaMemDesc,
    NvDlaTask,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

MAGIC: Final = 0x414C4453
MAX_DATA_BYTES: Final = 4 << 20
"""Of memory in one frame; more goes in several."""


class Kind(IntEnum):
    """What a frame asks, or answers."""

    OPEN = 1
    CLOSE = 2
    ALLOCATE = 3
    FREE = 4
    WRITE = 5
    SUBMIT = 6
    PRINT = 7
    DATA = 16
    """Memory that a submission changed; DONE or FAILED follows."""
    DONE = 17
    FAILED = 18


@dataclass(frozen=True, slots=True)
class FrameHead(Descriptor):
    """The first bytes of a frame."""

    magic: int = at(0, "u32", default=MAGIC)
    kind: int = at(4, "u32")
    status: int = at(8, "u32")
    length: int = at(12, "u32")


@dataclass(frozen=True, slots=True)
class OpenRequest(Descriptor):
    """Open a device instance."""

    instance: int = at(0, "u32")


@dataclass(frozen=True, slots=True)
class DeviceRequest(Descriptor):
    """Close a device, or submit to it."""

    device: int = at(0, "u64")


@dataclass(frozen=True, slots=True)
class AllocateRequest(Descriptor):
    """Allocate memory."""

    device: int = at(0, "u64")
    size: int = at(8, "u64")
    heap: int = at(16, "u32")


@dataclass(frozen=True, slots=True)
class MemoryRequest(Descriptor):
    """Free memory, or the place of the bytes that follow."""

    device: int = at(0, "u64")
    memory: int = at(8, "u64")
    offset: int = at(16, "u64")


@dataclass(frozen=True, slots=True)
class OpenReply(Descriptor):
    """A device and what it is; the name of its configuration follows."""

    device: int = at(0, "u64")
    atom_bytes: int = at(8, "u32")
    """0 when the hardware is not known; then no name follows."""


@dataclass(frozen=True, slots=True)
class HandleReply(Descriptor):
    """Memory."""

    handle: int = at(0, "u64")


@dataclass(frozen=True, slots=True)
class TaskHead(Descriptor):
    """A task; its addresses follow."""

    task_id: int = at(0, "u64")
    num_addresses: int = at(8, "u32")
    version: tuple[int, ...] = at(12, "u8", 3)
    reserved: int = at(15, "u8")


@dataclass(frozen=True, slots=True)
class TaskAddress(Descriptor):
    """An entry of a task's address list."""

    memory: int = at(0, "u64")
    offset: int = at(8, "u64")


_MAX_TASK_BYTES: Final = MAX_TASKS_PER_SUBMIT * (
    TaskHead.size_bytes() + MAX_ADDRESSES_PER_TASK * TaskAddress.size_bytes()
)
MAX_PAYLOAD_BYTES: Final = 64 + max(MAX_DATA_BYTES, _MAX_TASK_BYTES)


class Frame(NamedTuple):
    """A message."""

    kind: Kind
    status: int
    payload: bytes


class ProtocolError(Exception):
    """The peer does not keep to the protocol."""


def send_frame(connection: socket.socket, kind: Kind, *payload: Buffer, status: int = 0) -> None:
    """Send a message. Raises OSError: the peer is gone."""
    views = [memoryview(part).cast("B") for part in payload]
    length = sum(view.nbytes for view in views)
    head = FrameHead(kind=kind, status=status, length=length)
    connection.sendall(b"".join([head.to_bytes(), *views]))


def receive_frame(
    connection: socket.socket, begin: Callable[[], float | None] = lambda: None
) -> Frame | None:
    """Receive a message; None when the peer has ended.

    Args:
        connection: to the peer.
        begin: called when the first byte is there; returns until when, on the monotonic clock, the
            last byte must be, or None.

    Raises:
        ProtocolError: It is none of ours.
        OSError: The peer is gone, or takes too long.
    """
    data = connection.recv(1)
    if not data:
        return None
    until = begin()
    data += _receive(connection, FrameHead.size_bytes() - len(data), until)
    if len(data) < FrameHead.size_bytes():
        raise ProtocolError("the header of a frame is truncated")
    head = FrameHead.from_bytes(data)
    if head.magic != MAGIC:
        raise ProtocolError(f"a frame starts with {data[:4].hex()}: the peer uses another protocol")
    if head.length > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a frame declares {head.length} bytes; at most {MAX_PAYLOAD_BYTES} are allowed"
        )
    try:
        kind = Kind(head.kind)
    except ValueError as error:
        raise ProtocolError(f"a frame has the unknown kind {head.kind}") from error
    payload = _receive(connection, head.length, until)
    if len(payload) < head.length:
        raise ProtocolError(f"a {kind.name} frame is truncated")
    return Frame(kind, head.status, payload)


def _receive(connection: socket.socket, size: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if until is not None:  # for all bytes: one by one, each of them is soon enough
            connection.settimeout(max(until - time.monotonic(), 1e-3))
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            break
        data += part
    return bytes(data)


def pack_tasks(tasks: Sequence[NvDlaTask]) -> bytes:
    """Write tasks whose memory handles are the peer's."""
    return b"".join(
        b"".join(
            [
                TaskHead(task.task_id, task.num_addresses, task.interface_version).to_bytes(),
                *(
                    TaskAddress(place.handle, place.offset).to_bytes()
                    for place in task.address_list
                ),
            ]
        )
        for task in tasks
    )


def unpack_tasks(data: bytes, offset: int) -> list[NvDlaTask]:
    """Read tasks. Raises NvdlaError: they are malformed."""
    tasks: list[NvDlaTask] = []
    while offset < len(data):
        if len(tasks) == MAX_TASKS_PER_SUBMIT:
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"a submission has more than {MAX_TASKS_PER_SUBMIT} tasks"
            )
        head = TaskHead.from_bytes(data, offset)
        offset += TaskHead.size_bytes()
        if offset + head.num_addresses * TaskAddress.size_bytes() > len(data):
            raise NvdlaError(
                NvError.INVALID_SIZE, f"task {head.task_id} of a submission is truncated"
            )
        places: list[NvDlaMemDesc] = []
        for _ in range(head.num_addresses):
            place = TaskAddress.from_bytes(data, offset)
            places.append(NvDlaMemDesc(place.memory, offset=place.offset))
            offset += TaskAddress.size_bytes()
        major, minor, sub_minor = head.version
        tasks.append(NvDlaTask(head.task_id, tuple(places), (major, minor, sub_minor)))
    return tasks
