"""The other end of a `SocketPort`: driver and hardware, one session for each connection."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.errors import InternalError
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.port._frames import (
    MOST_DATA_BYTES,
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
from smelt.nvdla.port._local import LocalPort
from smelt.nvdla.port._types import NvDlaHeap
from smelt.types import Closing, override

if TYPE_CHECKING:
    from smelt.nvdla.port._driver import Driver
    from smelt.nvdla.port._types import Bytes, PinnedMemory

_LOG = logging.getLogger(__name__)
_MOST_CONNECTIONS: Final = 32
_FAULTS: Final = (
    ArithmeticError,
    InternalError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""What a fault of the modelled hardware raises: the client hears of it, and the log has it."""


class PortServer(Closing):
    """Listens on a Unix socket that only this user may open."""

    def __init__(self, path: str | os.PathLike[str], driver: Driver) -> None:
        """Listen.

        Raises:
            NvdlaError: BUSY, another server listens there; PATH_ALREADY_EXISTS, a file of another
                kind is there; RESOURCE_ERROR, the path cannot be used.
        """
        self._path: Final = Path(path)
        self._driver: Final = driver
        self._is_closing = threading.Event()
        self._slots: Final = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._connections: Final[set[socket.socket]] = set()
        self._connections_lock: Final = threading.Lock()
        self._listener: Final = _listen(self._path)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve from a thread of its own."""
        self._thread = threading.Thread(target=self.serve_forever, name="smelt-dla", daemon=True)
        self._thread.start()

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
                raise
            if not self._slots.acquire(blocking=False):
                _LOG.warning("a connection is refused: there are %d", _MOST_CONNECTIONS)
                connection.close()
                continue
            with self._connections_lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    @override
    def close(self) -> None:
        """Stop listening, end every connection, and remove the socket."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        _shut(self._listener)
        with self._connections_lock:
            for connection in self._connections:
                _shut(connection)
        if self._thread is not None:
            self._thread.join()
        self._path.unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, LocalPort(self._driver) as port:
                _Conversation(connection, port).run()
        finally:
            with self._connections_lock:
                self._connections.discard(connection)
            self._slots.release()


def _listen(path: Path) -> socket.socket:
    if path.exists():
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
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise NvdlaError(NvError.BUSY, f"another server listens at {str(path)!r}")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        _LOG.debug("a connection had ended already: %s", error)
    connection.close()


class _Conversation:
    """One client."""

    def __init__(self, connection: socket.socket, port: LocalPort) -> None:
        self._connection = connection
        self._port = port
        self._session = port.initialize()
        self._memory: dict[tuple[int, int], PinnedMemory] = {}

    def run(self) -> None:
        """Answer until the client ends, or breaks the protocol."""
        try:
            while (frame := receive_frame(self._connection)) is not None:
                try:
                    answer = self._answer(frame)
                except NvdlaError as error:
                    text = str(error).encode()[:MOST_DATA_BYTES]
                    send_frame(self._connection, Kind.FAILED, text, status=error.status or 0)
                except _FAULTS as error:
                    _LOG.exception("a request of kind %s fails", frame.kind.name)
                    self._fail(error)
                else:
                    send_frame(self._connection, Kind.DONE, answer)
        except (OSError, ProtocolError) as error:
            _LOG.warning("a client is dropped: %s", error)

    def _fail(self, error: Exception) -> None:
        """Answer that a request met a fault of the driver's own."""
        status = NvError.INVALID_STATE
        if isinstance(error, MemoryError):
            status = NvError.INSUFFICIENT_MEMORY
        text = f"the device's server fails: {type(error).__name__}: {error}"
        payload = text.encode(errors="replace")[:MOST_DATA_BYTES]
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
                raise ProtocolError(f"a client sends {kind.name}, which only a server may")

    def _open(self, instance: int) -> bytes:
        device = self._port.open(self._session, instance)
        name, atom_bytes = self._port.hardware or ("", 0)
        return OpenReply(device, atom_bytes).to_bytes() + name.encode()

    def _close(self, device: int) -> bytes:
        self._port.close(self._session, device)
        for key in [key for key in self._memory if key[0] == device]:
            del self._memory[key]
        return b""

    def _allocate(self, request: AllocateRequest) -> bytes:
        heap = request.heap
        if heap not in tuple(NvDlaHeap):
            raise NvdlaError(NvError.BAD_PARAMETER, f"heap {heap}: SYSTEM is 0, SRAM is 1")
        memory = self._port.alloc_mem(self._session, request.device, request.size, NvDlaHeap(heap))
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
        del self._memory[request.device, request.memory]
        return b""

    def _write(self, payload: bytes) -> bytes:
        request = MemoryRequest.from_bytes(payload)
        data = np.frombuffer(payload, np.uint8, offset=MemoryRequest.size_bytes())
        memory = self._find(request.device, request.memory)
        if request.offset + data.nbytes > memory.data.nbytes:
            raise NvdlaError(
                NvError.INVALID_ADDRESS,
                f"{data.nbytes} bytes at {request.offset} lie outside memory of "
                f"{memory.data.nbytes} bytes",
            )
        memory.data[request.offset : request.offset + data.nbytes] = data
        return b""

    def _submit(self, payload: bytes) -> bytes:
        device = DeviceRequest.from_bytes(payload).device
        tasks = unpack_tasks(payload, DeviceRequest.size_bytes())
        named = {place.handle for task in tasks for place in task.address_list}
        before = {handle: self._find(device, handle).data.copy() for handle in named}
        try:
            self._port.submit(self._session, device, tasks)
        finally:
            for handle, was in before.items():
                self._send_changes(device, handle, was, self._find(device, handle))
        return b""

    def _send_changes(self, device: int, handle: int, was: Bytes, memory: PinnedMemory) -> None:
        changed = np.flatnonzero(was != memory.data)
        if not changed.size:
            return
        end = int(changed[-1]) + 1
        for start in range(int(changed[0]), end, MOST_DATA_BYTES):
            part = memory.data[start : min(end, start + MOST_DATA_BYTES)]
            place = MemoryRequest(device, handle, start)
            send_frame(self._connection, Kind.DATA, place.to_bytes(), part.tobytes())
