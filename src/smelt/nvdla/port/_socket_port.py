"""Transport to another process: framed messages over a Unix socket.

Each allocation has a copy on this side. Before a submission the client sends the parts that it
changed; after the submission the server sends the parts that the task changed.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.port._frames import (
    MAX_DATA_BYTES,
    AllocateRequest,
    Frame,
    FrameKind,
    Handle,
    MemoryRequest,
    OpenReply,
    OpenRequest,
    ProtocolError,
    pack_tasks,
    receive_frame,
    send_frame,
)
from smelt.nvdla.port._handle_port import HandlePort
from smelt.nvdla.port._interfaces import DeviceHardware
from smelt.signal_errors import pass_on_handler_error
from smelt.types import require_path

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from smelt.nvdla.port._interfaces import Bytes, NvDlaHeap, NvDlaTask


@dataclass(slots=True)
class _Mirror:
    """This side's copy of an allocation of the server."""

    handle: int
    data: Bytes
    remote_data: Bytes
    """Contents of the server's memory, to find what changed on this side."""


class SocketPort(HandlePort[int, _Mirror]):
    """Port whose devices are in the process of a `PortServer`."""

    def __init__(self, path: str | os.PathLike[str], timeout_s: float | None = None) -> None:
        """Connect to a server.

        Args:
            path: Path of the server's socket.
            timeout_s: Maximum time to wait for a reply, in seconds; None waits for ever.

        Raises:
            NvdlaError: DEVICE_NOT_FOUND if no server listens at the path.
        """
        name = str(require_path(path, "a socket"))
        super().__init__()
        self.hardware: DeviceHardware | None = None
        """Hardware of the last opened device; None before, or if the server does not report it."""
        self._lock: Final = threading.Lock()
        self._connection: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(timeout_s)
        try:
            self._connection.connect(name)
        except OSError as error:
            self._connection.close()
            pass_on_handler_error(error)
            raise NvError.DEVICE_NOT_FOUND.error(
                f"no server listens at {name!r} ({error}); start one with: smelt dla serve"
            ) from error

    def disconnect(self) -> None:
        """Close the connection; the server then frees the client's devices and memory."""
        self._connection.close()

    def __exit__(self, *_error: object) -> None:
        """End every session and close the connection."""
        try:
            super().__exit__()
        finally:
            self.disconnect()

    def debug_printf(self, message: str, /, *args: object) -> None:
        """Write to the debug console of this process and of the server."""
        super().debug_printf(message, *args)
        text = message % args if args else message
        self._request(FrameKind.PRINT, text.encode()[:MAX_DATA_BYTES])

    def _open_device(self, instance: int) -> int:
        payload = self._request(FrameKind.OPEN, OpenRequest(instance).to_bytes()).payload
        reply = OpenReply.from_bytes(payload)
        self.hardware = _read_hardware(reply, payload[OpenReply.size_bytes() :])
        return reply.device

    def _close_device(self, device: int) -> None:
        self._request(FrameKind.CLOSE, Handle(device).to_bytes())

    def _allocate(self, device: int, size: int, heap: NvDlaHeap) -> tuple[_Mirror, Bytes]:
        request = AllocateRequest(device, size, heap)
        reply = self._request(FrameKind.ALLOCATE, request.to_bytes())
        handle = Handle.from_bytes(reply.payload).handle
        mirror = _Mirror(handle, np.zeros(size, np.uint8), np.zeros(size, np.uint8))
        return mirror, mirror.data

    def _free(self, device: int, memory: _Mirror) -> None:
        self._request(FrameKind.FREE, MemoryRequest(device, memory.handle).to_bytes())

    def _run(self, device: int, tasks: Sequence[NvDlaTask], memory: Mapping[int, _Mirror]) -> None:
        """Send changed memory, then the tasks with the server's memory handles."""
        for mirror in memory.values():
            self._upload(device, mirror)
        handles = {handle: mirror.handle for handle, mirror in memory.items()}
        mirrors = {mirror.handle: mirror for mirror in memory.values()}
        self._request(
            FrameKind.SUBMIT, Handle(device).to_bytes(), pack_tasks(tasks, handles), into=mirrors
        )

    def _upload(self, device: int, mirror: _Mirror) -> None:
        """Send the parts of a mirror that changed on this side."""
        if np.array_equal(mirror.data, mirror.remote_data):
            return
        for start in range(0, mirror.data.nbytes, MAX_DATA_BYTES):
            part = mirror.data[start : start + MAX_DATA_BYTES]
            remote_part = mirror.remote_data[start : start + MAX_DATA_BYTES]
            if not np.array_equal(part, remote_part):
                target = MemoryRequest(device, mirror.handle, start)
                self._request(FrameKind.WRITE, target.to_bytes(), part.tobytes())
                remote_part[:] = part

    def _request(
        self, kind: FrameKind, *payload: Buffer, into: Mapping[int, _Mirror] | None = None
    ) -> Frame:
        """Send a request and return the reply; store the memory that precedes it in its mirrors.

        Raises:
            NvdlaError: The code that the server reports; DISCONNECTED if the connection ended.
        """
        with self._lock:
            try:
                send_frame(self._connection, kind, *payload)
                while (frame := receive_frame(self._connection)) is not None:
                    if frame.kind is not FrameKind.DATA:
                        break
                    _store(frame.payload, into or {})
            except (OSError, ProtocolError) as error:
                self._connection.close()
                pass_on_handler_error(error)
                raise NvError.DISCONNECTED.error(
                    f"the connection to the server failed: {error}"
                ) from error
        if frame is None:
            raise NvError.DISCONNECTED.error("the server process has closed the connection")
        if frame.kind is FrameKind.FAILED:
            raise NvdlaError(_status(frame.status), frame.payload.decode(errors="replace"))
        return frame


def _read_hardware(reply: OpenReply, name: bytes) -> DeviceHardware | None:
    """Return the hardware that the server reports, or None if it does not report any."""
    if not reply.atom_bytes:
        return None
    if reply.atom_bytes % 2:
        raise NvError.BAD_VALUE.error(
            f"the server process reports an atom of {reply.atom_bytes} bytes; its size must be even"
        )
    return DeviceHardware(name.decode(errors="replace"), reply.atom_bytes)


def _store(payload: bytes, mirrors: Mapping[int, _Mirror]) -> None:
    """Store changed memory in its mirror; raise ProtocolError if it has none."""
    source = MemoryRequest.from_bytes(payload)
    part = np.frombuffer(payload, np.uint8, offset=MemoryRequest.size_bytes())
    mirror = mirrors.get(source.memory)
    if mirror is None or source.offset + part.nbytes > mirror.data.nbytes:
        raise ProtocolError("the server process sent memory that the submission does not use")
    mirror.data[source.offset : source.offset + part.nbytes] = part
    mirror.remote_data[source.offset : source.offset + part.nbytes] = part


def _status(number: int) -> NvError:
    try:
        return NvError(number)
    except ValueError:
        return NvError.RESOURCE_ERROR
