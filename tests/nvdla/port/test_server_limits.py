"""Clients that say nothing, half a thing, or never listen keep nobody else from the device."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.port import LocalPort, NvDlaHeap, PortServer, SocketPort
from smelt.nvdla.port._frames import FrameKind, receive_frame, send_frame
from smelt.types import Limit
from tests.support.nvdla_driver import RecordingDriver

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

MAGIC, OPEN, PRINT = 0x414C4453, 1, 7
OPEN_FRAME = struct.pack("<IIIII", MAGIC, OPEN, 0, 4, 0)


@pytest.fixture
def path(tmp_path: Path) -> Generator[Path]:
    with PortServer(tmp_path / "s", RecordingDriver()) as server:
        server.start()
        yield tmp_path / "s"


@pytest.fixture
def clients() -> Generator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_client_dropped_before_it_is_served_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_served, is_dropped = threading.Event(), threading.Event()

    def enter(port: LocalPort) -> LocalPort:
        is_served.set()
        is_dropped.wait(30)
        return port

    monkeypatch.setattr(LocalPort, "__enter__", enter)
    others = set(threading.enumerate())
    with PortServer(tmp_path / "s", RecordingDriver()) as server:
        server.start()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
            assert is_served.wait(30)
            serving = set(threading.enumerate()) - others
            server.close()
            is_dropped.set()
            for thread in serving:
                thread.join(30)  # what one of them raises fails the test


def _connect(path: Path, clients: contextlib.ExitStack, data: bytes = b"") -> socket.socket:
    connection = clients.enter_context(socket.socket(socket.AF_UNIX))
    connection.settimeout(30)
    connection.connect(str(path))
    connection.sendall(data)
    return connection


def _serves(path: Path) -> bool:
    with SocketPort(path, timeout_s=30) as port:
        session = port.initialize()
        return bool(port.open(session, 0))


def _is_ended(connection: socket.socket) -> bool:
    """Whether the server ends the connection, within the test's own deadline."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return True


def test_silent_clients_make_way_for_one_that_asks(
    path: Path, clients: contextlib.ExitStack
) -> None:
    silent = [_connect(path, clients) for _ in range(Limit.MAX_CLIENTS.most)]
    assert _serves(path)
    assert _is_ended(silent[0])
    for _ in range(2 * Limit.MAX_CLIENTS.most):
        _connect(path, clients)
    assert _serves(path)


def test_a_client_that_never_asks_is_dropped_after_a_while(
    path: Path, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_SILENT_SECONDS, "most", 0.05)
    assert _is_ended(_connect(path, clients))


@pytest.mark.parametrize("half", [OPEN_FRAME[:1], OPEN_FRAME[:7], OPEN_FRAME[:-1]])
def test_a_request_that_stops_half_way_is_dropped_after_a_while(
    half: bytes, path: Path, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_FRAME_SECONDS, "most", 0.05)
    assert _is_ended(_connect(path, clients, half))


def test_a_request_in_single_bytes_has_one_deadline_for_all_of_them(
    path: Path, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_FRAME_SECONDS, "most", 0.1)
    head = struct.pack("<IIII", MAGIC, PRINT, 0, 1 << 20)
    connection = _connect(path, clients, head)
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: ended.set() if _is_ended(connection) else None)
    waiter.start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while not ended.wait(0.005):
            connection.sendall(b"x")
    waiter.join(30)
    assert ended.is_set()


def test_a_client_that_takes_no_answers_is_dropped_after_a_while(
    path: Path, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_FRAME_SECONDS, "most", 0.05)
    connection = _connect(path, clients)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:  # until the server ends the connection
            connection.sendall(OPEN_FRAME * 64)
    monkeypatch.undo()
    assert _serves(path)


def test_clients_that_ask_now_and_then_keep_their_places(
    path: Path, clients: contextlib.ExitStack
) -> None:
    asked = [_connect(path, clients, OPEN_FRAME) for _ in range(Limit.MAX_CLIENTS.most)]
    for connection in asked:
        assert connection.recv(1 << 10)
    with pytest.raises(NvdlaError) as caught:
        _serves(path)
    assert caught.value.status == NvError.DISCONNECTED
    asked[0].sendall(OPEN_FRAME)
    assert asked[0].recv(1 << 10)


def test_a_client_that_is_idle_for_long_makes_way(
    path: Path, clients: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [_connect(path, clients, OPEN_FRAME) for _ in range(Limit.MAX_CLIENTS.most)]
    for connection in asked:
        assert connection.recv(1 << 10)
    monkeypatch.setattr(Limit.MAX_IDLE_SECONDS, "most", 0)
    assert _serves(path)


def test_memory_of_all_clients_is_bounded_by_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limit.MAX_SERVED_BYTES, "most", 1 << 20)
    with SocketPort(path, timeout_s=30) as first, SocketPort(path, timeout_s=30) as second:
        sessions = first.initialize(), second.initialize()
        devices = first.open(sessions[0], 0), second.open(sessions[1], 0)
        memory = first.alloc_mem(sessions[0], devices[0], 1 << 19, NvDlaHeap.SYSTEM)
        with pytest.raises(NvdlaError, match="MAX_SERVED_BYTES is 1,048,576") as caught:
            second.alloc_mem(sessions[1], devices[1], 1 << 20, NvDlaHeap.SYSTEM)
        assert caught.value.status == NvError.INSUFFICIENT_MEMORY
        first.free_mem(sessions[0], devices[0], *memory, memory.data.nbytes)
        second.alloc_mem(sessions[1], devices[1], 1 << 20, NvDlaHeap.SYSTEM)
        second.close(sessions[1], devices[1])
        first.alloc_mem(sessions[0], devices[0], 1 << 20, NvDlaHeap.SYSTEM)


def _ask(connection: socket.socket, kind: int, payload: bytes) -> bytes:
    send_frame(connection, FrameKind(kind), payload)
    while (frame := receive_frame(connection)) is not None:
        if frame.kind is FrameKind.DONE:
            return frame.payload
        assert frame.kind is FrameKind.DATA
    raise AssertionError("the server ended the connection")


def test_a_submission_copies_no_memory_that_it_names(
    tmp_path: Path, clients: contextlib.ExitStack
) -> None:
    size = 64 << 20
    with PortServer(tmp_path / "s", RecordingDriver(room_bytes=size)) as server:
        server.start()
        client = _connect(tmp_path / "s", clients)
        device = _ask(client, FrameKind.OPEN, bytes(4))[:8]
        memory = _ask(client, FrameKind.ALLOCATE, struct.pack("<8sQI", device, size, 0))
        source = _ask(client, FrameKind.ALLOCATE, struct.pack("<8sQI", device, 1, 0))
        places = struct.pack("<8sQ8sQ", source, 0, memory, 0)
        tracemalloc.start()
        try:
            _ask(
                client, FrameKind.SUBMIT, device + struct.pack("<QIBBBB", 1, 2, 0, 0, 0, 0) + places
            )
            assert tracemalloc.get_traced_memory()[1] < size / 4
        finally:
            tracemalloc.stop()
