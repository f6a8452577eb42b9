"""Message frames between a user-mode driver and the process that has the driver and the hardware.

A frame is a header and a payload; a payload is a structure followed by bytes. Everything received
is checked before use: a peer that violates the protocol only loses its connection.
"""

from __future__ import annotations

import time
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from smelt.nvdla._descriptor_codec import Descriptor, at
from smelt.nvdla._errors import NvError
from smelt.nvdla.port._interfaces import (
    MAX_ADDRESSES_PER_TASK,
    MAX_TASKS_PER_SUBMIT,
    NvDlaMemDesc,
    NvDlaTask,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer

MAGIC: Final = 0x414C4453
"""First word of every frame: ``SDLA`` in little-endian ASCII."""
MAX_DATA_BYTES: Final = 4 << 20
"""Maximum memory in one frame, in bytes; larger transfers use several frames."""


class FrameKind(IntEnum):
    """Kind of a frame: a request, a reply, or memory before a reply."""

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
    """Reply to a request that succeeded."""
    FAILED = 18
    """Reply to a request that failed, with a status and a message."""


class FrameHeader(Descriptor):
    """Header of a frame."""

    magic: int = at(0, "u32", default=MAGIC)
    kind: int = at(4, "u32")
    status: int = at(8, "u32")
    length: int = at(12, "u32")


class OpenRequest(Descriptor):
    """Request to open a device instance."""

    instance: int = at(0, "u32")


class Handle(Descriptor):
    """Device to close or to submit tasks to, which follow; or, in a reply, allocated memory."""

    handle: int = at(0, "u64")


class AllocateRequest(Descriptor):
    """Request to allocate memory."""

    device: int = at(0, "u64")
    size: int = at(8, "u64")
    heap: int = at(16, "u32")


class MemoryRequest(Descriptor):
    """Request to free memory, or the position in memory of the bytes that follow."""

    device: int = at(0, "u64")
    memory: int = at(8, "u64")
    offset: int = at(16, "u64")


class OpenReply(Descriptor):
    """Handle and hardware of an opened device; the name of its configuration follows."""

    device: int = at(0, "u64")
    atom_bytes: int = at(8, "u32")
    """Size of a memory atom; 0 if the hardware is not known, and then no name follows."""


class TaskHeader(Descriptor):
    """Header of a task; its address list follows."""

    task_id: int = at(0, "u64")
    num_addresses: int = at(8, "u32")
    version: tuple[int, ...] = at(12, "u8", 3)
    reserved: int = at(15, "u8")


class TaskAddress(Descriptor):
    """An entry of a task's address list."""

    memory: int = at(0, "u64")
    offset: int = at(8, "u64")


_MAX_TASK_BYTES: Final = MAX_TASKS_PER_SUBMIT * (
    TaskHeader.size_bytes() + MAX_ADDRESSES_PER_TASK * TaskAddress.size_bytes()
)
"""Size of the largest submission in bytes."""
MAX_PAYLOAD_BYTES: Final = 64 + max(MAX_DATA_BYTES, _MAX_TASK_BYTES)
"""Maximum size of a payload in bytes; 64 bytes hold the structure at its start."""


class Frame(NamedTuple):
    """A received message."""

    kind: FrameKind
    status: int
    payload: bytes


class ProtocolError(Exception):
    """The peer violates the protocol."""


def send_frame(
    connection: socket.socket, kind: FrameKind, *payload: Buffer, status: int = 0
) -> None:
    """Send a message.

    Raises:
        OSError: If the peer has closed the connection or does not receive in time.
    """
    views = [memoryview(part).cast("B") for part in payload]
    length = sum(view.nbytes for view in views)
    header = FrameHeader(kind=kind, status=status, length=length)
    connection.sendall(b"".join([header.to_bytes(), *views]))


def receive_frame(
    connection: socket.socket, on_first_byte: Callable[[], float | None] = lambda: None
) -> Frame | None:
    """Receive a message; return None if the peer has closed the connection.

    Args:
        connection: Connection to the peer.
        on_first_byte: Function that is called when the first byte has arrived. It returns the
            deadline of the last byte by `time.monotonic`, or None.

    Raises:
        ProtocolError: If the frame is malformed, truncated or too large.
        OSError: If the connection fails or the deadline passes.
    """
    data = connection.recv(1)
    if not data:
        return None
    deadline_s = on_first_byte()
    data += _receive(connection, FrameHeader.size_bytes() - len(data), deadline_s)
    if len(data) < FrameHeader.size_bytes():
        raise ProtocolError("the header of a frame is truncated")
    header = FrameHeader.from_bytes(data)
    if header.magic != MAGIC:
        raise ProtocolError(f"a frame starts with {data[:4].hex()}: the peer uses another protocol")
    if header.length > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a frame declares {header.length} bytes; at most {MAX_PAYLOAD_BYTES} are allowed"
        )
    try:
        kind = FrameKind(header.kind)
    except ValueError as error:
        raise ProtocolError(f"a frame has the unknown kind {header.kind}") from error
    payload = _receive(connection, header.length, deadline_s)
    if len(payload) < header.length:
        raise ProtocolError(
            f"a frame of kind {kind.name} is truncated: it has {len(payload)} of {header.length} "
            "bytes"
        )
    return Frame(kind, header.status, payload)


def _receive(connection: socket.socket, size: int, deadline_s: float | None) -> bytes:
    """Return ``size`` bytes, or fewer if the peer closes the connection."""
    data = bytearray()
    while len(data) < size:
        if deadline_s is not None:  # a timeout per call would never expire if bytes trickle in
            connection.settimeout(max(deadline_s - time.monotonic(), 1e-3))
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            break
        data += part
    return bytes(data)


def pack_tasks(tasks: Sequence[NvDlaTask], handles: Mapping[int, int]) -> bytes:
    """Return the bytes of tasks; ``handles`` has the peer's memory handles by this side's."""
    parts: list[Descriptor] = []
    for task in tasks:
        parts.append(TaskHeader(task.task_id, task.num_addresses, task.interface_version))
        parts += [TaskAddress(handles[item.handle], item.offset) for item in task.address_list]
    return b"".join(part.to_bytes() for part in parts)


def unpack_tasks(data: bytes, offset: int) -> list[NvDlaTask]:
    """Read the tasks of a submission, from a byte offset to the end of ``data``.

    Raises:
        NvdlaError: BAD_PARAMETER if there are too many tasks; INVALID_SIZE if one is truncated.
    """
    tasks: list[NvDlaTask] = []
    while offset < len(data):
        if len(tasks) == MAX_TASKS_PER_SUBMIT:
            raise NvError.BAD_PARAMETER.error(
                f"a submission has more than {MAX_TASKS_PER_SUBMIT} tasks"
            )
        header = TaskHeader.from_bytes(data, offset)
        offset += TaskHeader.size_bytes()
        if offset + header.num_addresses * TaskAddress.size_bytes() > len(data):
            raise NvError.INVALID_SIZE.error(f"task {header.task_id} of a submission is truncated")
        address_list: list[NvDlaMemDesc] = []
        for _ in range(header.num_addresses):
            address = TaskAddress.from_bytes(data, offset)
            address_list.append(NvDlaMemDesc(address.memory, offset=address.offset))
            offset += TaskAddress.size_bytes()
        major, minor, sub_minor = header.version
        tasks.append(NvDlaTask(header.task_id, tuple(address_list), (major, minor, sub_minor)))
    return tasks
