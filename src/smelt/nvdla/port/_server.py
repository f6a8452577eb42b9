"""Server for `SocketPort` clients: it has driver and hardware, and a session per connection."""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
import socket
import stat
import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.engine import locked_folder
from smelt.errors import DeviceError, InternalError
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
    receive_frame,
    send_frame,
    unpack_tasks,
)
from smelt.nvdla.port._handle_port import check_allocation
from smelt.nvdla.port._local import LocalPort
from smelt.signal_errors import pass_on_handler_error, path_mode, suppress_own
from smelt.types import BackgroundThread, Closeable, Limit, override, require_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from smelt.nvdla.port._interfaces import Bytes, Driver, PinnedMemory

_LOG = logging.getLogger(__name__)
_ACCEPT_RETRY_SECONDS: Final = 0.2
"""Pause after the system could not accept a client for lack of descriptors or memory."""
_FREE_SLOT_TIMEOUT_SECONDS: Final = 5.0
"""Maximum time to wait until the session of a dropped client has ended."""
_BLOCK_BYTES: Final = 1 << 20
"""Size of the blocks in which memory is compared and sent."""
_MODEL_ERRORS: Final = (
    ArithmeticError,
    InternalError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""Exceptions that a bug of the machine model raises; they are logged and sent to the client."""


class PortServer(Closeable):
    """Server on a Unix socket that only this user may open."""

    def __init__(self, path: str | os.PathLike[str], driver: Driver) -> None:
        """Listen on a socket.

        Args:
            path: Path of the socket to create; a socket without a server is replaced.
            driver: Driver of the devices.

        Raises:
            NvdlaError: BUSY if another server listens at the path; PATH_ALREADY_EXISTS if the path
                is not a socket; RESOURCE_ERROR if the path cannot be used.
        """
        self._path: Final = require_path(path, "a socket")
        self._driver: Final = driver
        self._is_closing = threading.Event()
        self._slots: Final = threading.BoundedSemaphore(Limit.MAX_CLIENTS.most)
        self._clients: Final[set[_ClientSession]] = set()
        self._clients_lock: Final = threading.Lock()
        self._quota: Final = _ServerMemoryQuota()
        self._listener: Final = _listen(self._path)
        self._socket_status: Final = _status_of(self._path)
        """Status of the socket at the path; None if it has already been removed."""
        self._thread: BackgroundThread | None = None

    def start(self) -> None:
        """Start a thread that runs `serve_forever`."""
        self._thread = BackgroundThread(self.serve_forever)

    def serve_forever(self) -> None:
        """Accept and serve clients until `close` is called."""
        while not self._is_closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                pass_on_handler_error(error)
                if self._is_closing.is_set():
                    return
                if error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    _LOG.warning("no client can be accepted at present: %s", error)
                    self._is_closing.wait(_ACCEPT_RETRY_SECONDS)
                    continue
                raise
            if not self._slots.acquire(blocking=False) and not self._drop_idle_client():
                _LOG.warning(
                    "a client was refused: the server has its maximum of MAX_CLIENTS (%d) clients",
                    Limit.MAX_CLIENTS.most,
                )
                connection.close()
                continue
            client = _ClientSession(connection, LocalPort(self._driver), self._quota)
            with self._clients_lock:
                self._clients.add(client)
                if self._is_closing.is_set():
                    client.drop()
            try:
                BackgroundThread(self._serve, client)
            except DeviceError as error:
                _LOG.warning("a client was refused: %s", error)
                client.refuse()
                self._release(client)

    def _drop_idle_client(self) -> bool:
        """Drop the client that is idle for longest; return whether its slot became free.

        Clients that have not sent any request yet are dropped before all others.
        """
        with self._clients_lock:
            idle = [client for client in self._clients if client.may_be_dropped()]
            if not idle:
                return False
            client = min(idle, key=lambda client: (client.has_sent_request, client.idle_since))
            _LOG.warning("an idle client was disconnected to accept another")
            client.drop()
        return self._slots.acquire(timeout=_FREE_SLOT_TIMEOUT_SECONDS)

    @override
    def close(self) -> None:
        """Stop listening, end every connection and remove the socket, but no other file there."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        _shut(self._listener)
        self._remove_socket()
        self._listener.close()
        with self._clients_lock:
            for client in self._clients:
                client.drop()
        if self._thread is not None:
            self._thread.join()

    def _remove_socket(self) -> None:
        """Remove the socket; its inode is not given to another file while the listener is open."""
        with locked_folder(self._path.parent):
            bound, found = self._socket_status, _status_of(self._path)
            if bound is not None and found is not None and os.path.samestat(bound, found):
                with suppress_own(OSError):  # the folder may no longer be writable
                    self._path.unlink()

    def _serve(self, client: _ClientSession) -> None:
        try:
            client.run()
        finally:
            self._release(client)

    def _release(self, client: _ClientSession) -> None:
        with self._clients_lock:
            self._clients.discard(client)
        self._slots.release()


def _status_of(path: Path) -> os.stat_result | None:
    """Return the status of what is at a path; None if nothing is there."""
    try:
        return path.lstat()
    except OSError as error:
        pass_on_handler_error(error)
        return None


def _listen(path: Path) -> socket.socket:
    """Return a listening socket at a path; raise NvdlaError if the path cannot be used."""
    with locked_folder(path.parent):  # no other server binds between the check and the bind
        if path_mode(path, follow_symlinks=False):
            _remove_stale(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(os.fspath(path))
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            listener.listen()
        except OSError as error:
            listener.close()
            pass_on_handler_error(error)
            raise NvError.RESOURCE_ERROR.error(
                f"cannot listen at {str(path)!r}: {error}"
            ) from error
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket at which no server listens; raise NvdlaError if the path is in use."""
    if not stat.S_ISSOCK(path_mode(path)):
        raise NvError.PATH_ALREADY_EXISTS.error(
            f"{str(path)!r} is not a socket; choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # a server that does not accept at present still owns its socket
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError as error:
            pass_on_handler_error(error)
            path.unlink()
            return
        except BlockingIOError as error:
            pass_on_handler_error(error)
            _LOG.debug("the server at %s has pending connections", path)
        except OSError as error:
            pass_on_handler_error(error)
            raise NvError.RESOURCE_ERROR.error(
                f"cannot check whether a server listens at {str(path)!r}: {error}"
            ) from error
    raise NvError.BUSY.error(f"another server already listens at {str(path)!r}")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        pass_on_handler_error(error)
        _LOG.debug("a connection was already closed: %s", error)


class _ServerMemoryQuota:
    """Limit on the memory of all clients of a server together."""

    def __init__(self) -> None:
        self._allocated_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Reserve memory before it is allocated.

        Raises:
            NvdlaError: INSUFFICIENT_MEMORY if the limit would be exceeded.
        """
        with self._lock:
            total = self._allocated_bytes + size_bytes
            if total > Limit.MAX_SERVED_BYTES.most:
                detail = Limit.MAX_SERVED_BYTES.excess(total)
                raise NvError.INSUFFICIENT_MEMORY.error(f"all clients together request {detail}")
            self._allocated_bytes = total

    def release(self, size_bytes: int) -> None:
        """Release memory that has been freed."""
        with self._lock:
            self._allocated_bytes -= size_bytes


class _ClientSession:
    """Session of one client."""

    def __init__(
        self, connection: socket.socket, port: LocalPort, quota: _ServerMemoryQuota
    ) -> None:
        self._connection = connection
        self._port = port
        self._quota = quota
        self._session = port.initialize()
        self._memory: dict[tuple[int, int], PinnedMemory] = {}
        self.idle_since = time.monotonic()
        """Time by `time.monotonic` since which no request is pending; infinite during a request."""
        self.has_sent_request = False

    def may_be_dropped(self) -> bool:
        """Return whether the client has sent no request yet, or none for MAX_IDLE_SECONDS."""
        idle = time.monotonic() - self.idle_since
        return idle >= (Limit.MAX_IDLE_SECONDS.most if self.has_sent_request else 0)

    def drop(self) -> None:
        """End the connection from another thread.

        Only the thread that serves the connection closes it: if another thread closed it, its
        descriptor could belong to another file when the serving thread uses it.
        """
        _shut(self._connection)

    def refuse(self) -> None:
        """End the session before its first request."""
        with self._connection, self._port:
            self.drop()

    def run(self) -> None:
        """Serve requests until the client disconnects, is dropped, or violates the protocol."""
        try:
            with self._connection, self._port:
                self._connection.settimeout(Limit.MAX_SILENT_SECONDS.most)
                self._run()
        finally:
            self._forget(list(self._memory))

    def _begin(self) -> float:
        """Note that a request begins and return the deadline of its last byte."""
        self.has_sent_request, self.idle_since = True, math.inf
        return time.monotonic() + Limit.MAX_FRAME_SECONDS.most

    def _wait(self) -> None:
        """Note that the session is idle and remove the timeout: it may then be dropped instead."""
        self._connection.settimeout(None)
        self.idle_since = time.monotonic()

    def _run(self) -> None:
        """Serve requests; log why the connection ends."""
        try:
            while (frame := receive_frame(self._connection, self._begin)) is not None:
                self._connection.settimeout(Limit.MAX_FRAME_SECONDS.most)
                try:
                    reply = self._reply(frame)
                except NvdlaError as error:
                    self._fail(str(error), error.status or 0)
                except _MODEL_ERRORS as error:
                    _LOG.exception(
                        "a request of kind %s failed with an internal error", frame.kind.name
                    )
                    is_full = isinstance(error, MemoryError)
                    self._fail(
                        f"the device's server failed: {type(error).__name__}: {error}",
                        NvError.INSUFFICIENT_MEMORY if is_full else NvError.INVALID_STATE,
                    )
                else:
                    send_frame(self._connection, FrameKind.DONE, reply)
                self._wait()
        except (OSError, ProtocolError) as error:
            pass_on_handler_error(error)
            _LOG.warning("a client was disconnected: %s", error)

    def _fail(self, text: str, status: int) -> None:
        """Reply that a request failed."""
        payload = text.encode(errors="replace")[:MAX_DATA_BYTES]
        send_frame(self._connection, FrameKind.FAILED, payload, status=status)

    def _reply(self, frame: Frame) -> bytes:
        """Carry out a request and return the payload of its reply."""
        match frame.kind:
            case FrameKind.OPEN:
                return self._open(OpenRequest.from_bytes(frame.payload).instance)
            case FrameKind.CLOSE:
                self._close(Handle.from_bytes(frame.payload).handle)
            case FrameKind.ALLOCATE:
                return self._allocate(AllocateRequest.from_bytes(frame.payload))
            case FrameKind.FREE:
                self._free(MemoryRequest.from_bytes(frame.payload))
            case FrameKind.WRITE:
                self._write(frame.payload)
            case FrameKind.SUBMIT:
                self._submit(frame.payload)
            case FrameKind.PRINT:
                self._port.debug_printf("%s", frame.payload.decode(errors="replace"))
            case kind:
                raise ProtocolError(
                    f"a client sent a frame of kind {kind.name}, which only a server may send"
                )
        return b""

    def _open(self, instance: int) -> bytes:
        device = self._port.open(self._session, instance)
        name, atom_bytes = self._port.hardware or ("", 0)
        return OpenReply(device, atom_bytes).to_bytes() + name.encode()

    def _close(self, device: int) -> None:
        self._port.close(self._session, device)
        self._forget([key for key in self._memory if key[0] == device])

    def _forget(self, keys: Iterable[tuple[int, int]]) -> None:
        """Remove allocations that the port has freed, and release their quota."""
        for key in keys:
            self._quota.release(self._memory.pop(key).data.nbytes)

    def _allocate(self, request: AllocateRequest) -> bytes:
        """Allocate memory for the client, within the quota."""
        heap = check_allocation(request.size, request.heap)
        self._quota.take(request.size)
        try:
            memory = self._port.alloc_mem(self._session, request.device, request.size, heap)
        except BaseException:
            self._quota.release(request.size)
            raise
        self._memory[request.device, memory.mem_handle] = memory
        return Handle(memory.mem_handle).to_bytes()

    def _find(self, device: int, handle: int) -> PinnedMemory:
        memory = self._memory.get((device, handle))
        if memory is None:
            raise NvError.BAD_PARAMETER.error(
                f"memory {handle} is not allocated on device {device}"
            )
        return memory

    def _free(self, request: MemoryRequest) -> None:
        memory = self._find(request.device, request.memory)
        self._port.free_mem(self._session, request.device, *memory, memory.data.nbytes)
        self._forget([(request.device, request.memory)])

    def _write(self, payload: bytes) -> None:
        """Write a client's bytes to its memory."""
        request = MemoryRequest.from_bytes(payload)
        data = np.frombuffer(payload, np.uint8, offset=MemoryRequest.size_bytes())
        memory = self._find(request.device, request.memory)
        if request.offset + data.nbytes > memory.data.nbytes:
            raise NvError.INVALID_ADDRESS.error(
                f"{data.nbytes} bytes at offset {request.offset} are outside the memory of "
                f"{memory.data.nbytes} bytes"
            )
        memory.data[request.offset : request.offset + data.nbytes] = data

    def _submit(self, payload: bytes) -> None:
        """Run a submission and send the memory that it changed, even if it fails."""
        device = Handle.from_bytes(payload).handle
        tasks = unpack_tasks(payload, Handle.size_bytes())
        handles = {address.handle for task in tasks for address in task.address_list}
        before = {handle: _digests(self._find(device, handle).data) for handle in handles}
        try:
            self._port.submit(self._session, device, tasks)
        finally:
            for handle, digests in before.items():
                self._send_changes(device, handle, digests, self._find(device, handle).data)

    def _send_changes(
        self, device: int, handle: int, digests: Sequence[bytes], memory: Bytes
    ) -> None:
        """Send the blocks of an allocation whose digests have changed."""
        for number, (block, digest) in enumerate(zip(_blocks(memory), digests, strict=True)):
            if hashlib.sha256(block.data).digest() != digest:
                position = MemoryRequest(device, handle, number * _BLOCK_BYTES)
                send_frame(self._connection, FrameKind.DATA, position.to_bytes(), block.data)


def _blocks(memory: Bytes) -> Iterator[Bytes]:
    for start in range(0, memory.nbytes, _BLOCK_BYTES):
        yield memory[start : start + _BLOCK_BYTES]


def _digests(memory: Bytes) -> list[bytes]:
    """Return digests of a memory's blocks, which show later what has changed.

    A copy of the memory instead would double the memory that a client uses.
    """
    return [hashlib.sha256(block.data).digest() for block in _blocks(memory)]
