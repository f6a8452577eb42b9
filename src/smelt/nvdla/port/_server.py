"""The other end of a `SocketPort`: driver and hardware, one session for each connection."""

from __future__ import annotations

import contextlib
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

from smelt.errors import DeviceError, InternalError
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.port._frames import (
    MAX_DATA_BYTES,
    AllocateRequest,
    DeviceRequest,
    Frame,
    HandleReply,
    Kind,
    MemoryRequest,
    OpenReply,
    OpenRequest,
    ProtocolError,
    receive_frame,
    send_frame,
    unpack_tasks,
)
from smelt.nvdla.port._handles import check_allocation
from smelt.nvdla.port._local import LocalPort
from smelt.types import Closeable, Limit, override, require_path, start_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from smelt.nvdla.port._driver import Driver
    from smelt.nvdla.port._types import Bytes, PinnedMemory

_LOG = logging.getLogger(__name__)
_IDLE_CLIENT_SECONDS: Final = 0.2
"""Before the next client is accepted where the system has no room for one."""
_FREE_SLOT_TIMEOUT_SECONDS: Final = 5.0
"""How long a client that is dropped may take to go."""
_BLOCK_BYTES: Final = 1 << 20
"""Of memory that is compared, and sent, as one."""
_FAULTS: Final = (
    ArithmeticError,
    InternalError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""What a fault of the modelled hardware raises: the client hears of it, and the log has it."""


class PortServer(Closeable):
    """Listens on a Unix socket that only this user may open."""

    def __init__(self, path: str | os.PathLike[str], driver: Driver) -> None:
        """Listen.

        Raises:
            NvdlaError: BUSY, another server listens there; PATH_ALREADY_EXISTS, a file of another
                kind is there; RESOURCE_ERROR, the path cannot be used.
        """
        self._path: Final = require_path(path, "a socket")
        self._driver: Final = driver
        self._is_closing = threading.Event()
        self._slots: Final = threading.BoundedSemaphore(Limit.MAX_CLIENTS.most)
        self._clients: Final[set[_ClientSession]] = set()
        self._clients_lock: Final = threading.Lock()
        self._quota: Final = _MemoryQuota()
        self._listener: Final = _listen(self._path)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve from a thread of its own."""
        self._thread = start_thread(self.serve_forever, name="smelt-dla")

    def serve_forever(self) -> None:
        """Serve until `close`."""
        while not self._is_closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._is_closing.is_set():
                    return
                if error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    _LOG.warning("no client can be accepted now: %s", error)
                    self._is_closing.wait(_IDLE_CLIENT_SECONDS)
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
                start_thread(self._serve, client)
            except DeviceError as error:
                _LOG.warning("a client was refused: %s", error)
                client.refuse()
                self._release(client)

    def _drop_idle_client(self) -> bool:
        """Drop the client that has waited longest for nothing; whether its place is free."""
        with self._clients_lock:
            waiting = [client for client in self._clients if client.may_be_dropped()]
            if not waiting:
                return False
            client = min(waiting, key=lambda client: (client.has_asked, client.waits_since))
            _LOG.warning("an idle client was disconnected to accept another")
            client.drop()
        return self._slots.acquire(timeout=_FREE_SLOT_TIMEOUT_SECONDS)

    @override
    def close(self) -> None:
        """Stop listening, end every connection, and remove the socket."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        _shut(self._listener)
        self._listener.close()
        with self._clients_lock:
            for client in self._clients:
                client.drop()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):  # the folder may be gone, or another's
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


def _listen(path: Path) -> socket.socket:
    if os.path.lexists(path):
        _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(os.fspath(path))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        listener.listen()
    except OSError as error:
        listener.close()
        raise NvdlaError(
            NvError.RESOURCE_ERROR, f"no server can listen at {str(path)!r}: {error}"
        ) from error
    return listener


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        raise NvdlaError(
            NvError.PATH_ALREADY_EXISTS, f"{str(path)!r} is not a socket; choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # a server that accepts nobody is one, too
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            _LOG.debug("the server at %s has clients waiting", path)
        except OSError as error:
            raise NvdlaError(
                NvError.RESOURCE_ERROR,
                f"cannot check whether a server listens at {str(path)!r}: {error}",
            ) from error
    raise NvdlaError(NvError.BUSY, f"another server already listens at {str(path)!r}")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        _LOG.debug("a connection was already closed: %s", error)


class _MemoryQuota:
    """The memory that all clients together may have."""

    def __init__(self) -> None:
        self._allocated_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Count memory that is to be allocated. Raises NvdlaError(INSUFFICIENT_MEMORY)."""
        with self._lock:
            total = self._allocated_bytes + size_bytes
            if total > Limit.MAX_SERVED_BYTES.most:
                detail = Limit.MAX_SERVED_BYTES.excess(total)
                raise NvdlaError(NvError.INSUFFICIENT_MEMORY, f"the clients request {detail}")
            self._allocated_bytes = total

    def give_back(self, size_bytes: int) -> None:
        """Count memory that is free again."""
        with self._lock:
            self._allocated_bytes -= size_bytes


class _ClientSession:
    """One client."""

    def __init__(self, connection: socket.socket, port: LocalPort, room: _MemoryQuota) -> None:
        self._connection = connection
        self._port = port
        self._quota = room
        self._session = port.initialize()
        self._memory: dict[tuple[int, int], PinnedMemory] = {}
        self.waits_since = time.monotonic()
        """Since when it waits for a request; infinite while it has one."""
        self.has_asked = False

    def may_be_dropped(self) -> bool:
        """Whether it has asked nothing yet, or not for long."""
        idle = time.monotonic() - self.waits_since
        return idle >= (Limit.MAX_IDLE_SECONDS.most if self.has_asked else 0)

    def drop(self) -> None:
        """End the connection from another thread.

        Only the thread that serves it closes it: a descriptor closed under that thread may be
        another file's by the time it is used.
        """
        _shut(self._connection)

    def refuse(self) -> None:
        """End before the first request."""
        with self._connection, self._port:
            self.drop()

    def run(self) -> None:
        """Answer until the client ends, is dropped, or breaks the protocol."""
        try:
            with self._connection, self._port:
                self._connection.settimeout(Limit.MAX_SILENT_SECONDS.most)
                self._run()
        finally:
            self._forget(list(self._memory))

    def _begin(self) -> float:
        self.has_asked, self.waits_since = True, math.inf
        return time.monotonic() + Limit.MAX_FRAME_SECONDS.most

    def _wait(self) -> None:
        """Wait for the next request as long as nobody else wants the place."""
        self._connection.settimeout(None)
        self.waits_since = time.monotonic()

    def _run(self) -> None:
        try:
            while (frame := receive_frame(self._connection, self._begin)) is not None:
                self._connection.settimeout(Limit.MAX_FRAME_SECONDS.most)
                try:
                    answer = self._answer(frame)
                except NvdlaError as error:
                    text = str(error).encode()[:MAX_DATA_BYTES]
                    send_frame(self._connection, Kind.FAILED, text, status=error.status or 0)
                except _FAULTS as error:
                    _LOG.exception("a request of kind %s fails", frame.kind.name)
                    self._fail(error)
                else:
                    send_frame(self._connection, Kind.DONE, answer)
                self._wait()
        except (OSError, ProtocolError) as error:
            _LOG.warning("a client was disconnected: %s", error)

    def _fail(self, error: Exception) -> None:
        """Answer that a request met a fault of the driver's own."""
        status = NvError.INVALID_STATE
        if isinstance(error, MemoryError):
            status = NvError.INSUFFICIENT_MEMORY
        text = f"the device's server failed: {type(error).__name__}: {error}"
        payload = text.encode(errors="replace")[:MAX_DATA_BYTES]
        send_frame(self._connection, Kind.FAILED, payload, status=status)

    def _answer(self, frame: Frame) -> bytes:
        match frame.kind:
            case Kind.OPEN:
                return self._open(OpenRequest.from_bytes(frame.payload).instance)
            case Kind.CLOSE:
                return self._close(DeviceRequest.from_bytes(frame.payload).device)
            case Kind.ALLOCATE:
                return self._allocate(AllocateRequest.from_bytes(frame.payload))
            case Kind.FREE:
                return self._free(MemoryRequest.from_bytes(frame.payload))
            case Kind.WRITE:
                return self._write(frame.payload)
            case Kind.SUBMIT:
                return self._submit(frame.payload)
            case Kind.PRINT:
                self._port.debug_printf("%s", frame.payload.decode(errors="replace"))
                return b""
            case kind:
                raise ProtocolError(f"a client sent {kind.name}, which only a server may send")

    def _open(self, instance: int) -> bytes:
        device = self._port.open(self._session, instance)
        name, atom_bytes = self._port.hardware or ("", 0)
        return OpenReply(device, atom_bytes).to_bytes() + name.encode()

    def _close(self, device: int) -> bytes:
        self._port.close(self._session, device)
        self._forget([key for key in self._memory if key[0] == device])
        return b""

    def _forget(self, keys: Iterable[tuple[int, int]]) -> None:
        """Count memory that the port has freed."""
        for key in keys:
            self._quota.give_back(self._memory.pop(key).data.nbytes)

    def _allocate(self, request: AllocateRequest) -> bytes:
        heap = check_allocation(request.size, request.heap)
        self._quota.take(request.size)
        try:
            memory = self._port.alloc_mem(self._session, request.device, request.size, heap)
        except BaseException:
            self._quota.give_back(request.size)
            raise
        self._memory[request.device, memory.mem_handle] = memory
        return HandleReply(memory.mem_handle).to_bytes()

    def _find(self, device: int, handle: int) -> PinnedMemory:
        memory = self._memory.get((device, handle))
        if memory is None:
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"memory {handle} is not allocated on device {device}"
            )
        return memory

    def _free(self, request: MemoryRequest) -> bytes:
        memory = self._find(request.device, request.memory)
        self._port.free_mem(
            self._session, request.device, request.memory, memory.data, memory.data.nbytes
        )
        self._forget([(request.device, request.memory)])
        return b""

    def _write(self, payload: bytes) -> bytes:
        request = MemoryRequest.from_bytes(payload)
        data = np.frombuffer(payload, np.uint8, offset=MemoryRequest.size_bytes())
        memory = self._find(request.device, request.memory)
        if request.offset + data.nbytes > memory.data.nbytes:
            raise NvdlaError(
                NvError.INVALID_ADDRESS,
                f"{data.nbytes} bytes at offset {request.offset} are outside the memory of "
                f"{memory.data.nbytes} bytes",
            )
        memory.data[request.offset : request.offset + data.nbytes] = data
        return b""

    def _submit(self, payload: bytes) -> bytes:
        device = DeviceRequest.from_bytes(payload).device
        tasks = unpack_tasks(payload, DeviceRequest.size_bytes())
        named = {place.handle for task in tasks for place in task.address_list}
        before = {handle: _digests(self._find(device, handle).data) for handle in named}
        try:
            self._port.submit(self._session, device, tasks)
        finally:
            for handle, was in before.items():
                self._send_changes(device, handle, was, self._find(device, handle).data)
        return b""

    def _send_changes(self, device: int, handle: int, was: Sequence[bytes], memory: Bytes) -> None:
        for number, (block, digest) in enumerate(zip(_blocks(memory), was, strict=True)):
            if hashlib.sha256(block.data).digest() != digest:
                place = MemoryRequest(device, handle, number * _BLOCK_BYTES)
                send_frame(self._connection, Kind.DATA, place.to_bytes(), block.data)


def _blocks(memory: Bytes) -> Iterator[Bytes]:
    for start in range(0, memory.nbytes, _BLOCK_BYTES):
        yield memory[start : start + _BLOCK_BYTES]


def _digests(memory: Bytes) -> list[bytes]:
    """What tells later which blocks have changed; a copy would double what a client takes."""
    return [hashlib.sha256(block.data).digest() for block in _blocks(memory)]
