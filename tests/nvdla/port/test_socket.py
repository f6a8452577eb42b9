"""A server refuses hostile frames, and serves others meanwhile."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.port import DeviceHardware, NvDlaHeap, PortServer, SocketPort
from tests.support.nvdla_driver import RecordingDriver

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

MAGIC = 0x414C4453
OPEN, CLOSE, ALLOCATE, FREE, WRITE, SUBMIT = 1, 2, 3, 4, 5, 6
DONE, FAILED = 17, 18


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    path = tmp_path_factory.mktemp("dla") / "s"
    with PortServer(path, RecordingDriver()) as server:
        server.start()
        yield path


def _frame(kind: int, payload: bytes, *, length: int | None = None, magic: int = MAGIC) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack("<IIII", magic, kind, 0, size) + payload


def _talk(path: Path, data: bytes) -> bytes:
    """Send bytes, end, and give all that comes back."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            return b""
        return answer


def _still_serves(path: Path) -> bool:
    with SocketPort(path, timeout_s=30) as port:
        session = port.initialize()
        device = port.open(session, 0)
        return bool(port.alloc_mem(session, device, 16, NvDlaHeap.SYSTEM).mem_handle)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        _frame(OPEN, b"", magic=0),
        _frame(OPEN, b"\0" * 4, length=0xFFFFFFFF),
        _frame(OPEN, b"\0" * 2, length=4),
        _frame(99, b""),
        _frame(DONE, b""),
        b"SD",
    ],
    ids=["http", "magic", "huge", "short", "kind", "role", "stub"],
)
def test_a_peer_that_breaks_the_protocol_is_dropped(data: bytes, path: Path) -> None:
    assert _talk(path, data) == b""
    assert _still_serves(path)


@pytest.mark.parametrize(
    ("kind", "payload", "status"),
    [
        (OPEN, b"\0", NvError.INVALID_SIZE),
        (OPEN, struct.pack("<I", 7), NvError.BAD_PARAMETER),
        (CLOSE, struct.pack("<Q", 1 << 60), NvError.BAD_PARAMETER),
        (ALLOCATE, struct.pack("<QQI", 2, 16, 5), NvError.BAD_PARAMETER),
        (ALLOCATE, struct.pack("<QQI", 2, 1 << 50, 0), NvError.INVALID_SIZE),
        (FREE, struct.pack("<QQQ", 2, 77, 0), NvError.BAD_PARAMETER),
        (WRITE, struct.pack("<QQQ", 2, 3, 10) + b"1234567", NvError.INVALID_ADDRESS),
        (WRITE, struct.pack("<QQQ", 2, 3, 1 << 63) + b"1", NvError.INVALID_ADDRESS),
        (SUBMIT, struct.pack("<Q", 2), NvError.BAD_PARAMETER),
        (SUBMIT, struct.pack("<QQIBBBB", 2, 0, 1 << 31, 0, 12, 0, 0), NvError.INVALID_SIZE),
        (SUBMIT, struct.pack("<QQIBBBBQQ", 2, 0, 1, 0, 12, 0, 0, 9, 0), NvError.BAD_PARAMETER),
    ],
)
def test_a_wrong_request_is_answered_with_its_code(
    kind: int, payload: bytes, status: NvError, path: Path
) -> None:
    before = _frame(OPEN, struct.pack("<I", 0)) + _frame(ALLOCATE, struct.pack("<QQI", 2, 16, 0))
    answer = _talk(path, before + _frame(kind, payload))
    offset = (16 + 12) + (16 + 8)
    magic, answered, number, length = struct.unpack_from("<IIII", answer, offset)
    assert (magic, answered, number) == (MAGIC, FAILED, status)
    assert len(answer) == offset + 16 + length
    assert _still_serves(path)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 5, 6, 7]), st.binary(max_size=60))))
def test_random_requests_never_end_the_server(
    path: Path, requests: list[tuple[int, bytes]]
) -> None:
    _talk(path, b"".join(_frame(kind, payload) for kind, payload in requests))
    assert _still_serves(path)


@pytest.mark.parametrize("hardware", [None, DeviceHardware("my_nvdla", 16)])
def test_a_server_says_what_its_devices_are(
    tmp_path: Path, hardware: DeviceHardware | None
) -> None:
    with PortServer(tmp_path / "s", RecordingDriver(hardware=hardware)) as server:
        server.start()
        with SocketPort(tmp_path / "s", timeout_s=30) as port:
            assert port.hardware is None
            port.open(port.initialize(), 0)
            assert port.hardware == hardware


def test_a_server_of_impossible_atoms_is_refused(tmp_path: Path) -> None:
    driver = RecordingDriver(hardware=DeviceHardware("odd", 1))
    with PortServer(tmp_path / "s", driver) as server:
        server.start()
        with (
            SocketPort(tmp_path / "s", timeout_s=30) as port,
            pytest.raises(NvdlaError, match="an atom of 1 bytes"),
        ):
            port.open(port.initialize(), 0)


def test_no_server_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NvdlaError, match="smelt dla serve") as caught:
        SocketPort(tmp_path / "none")
    assert caught.value.status is NvError.DEVICE_NOT_FOUND


def test_a_server_takes_no_others_place(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NvdlaError) as caught:
        PortServer(path, RecordingDriver())
    assert caught.value.status is NvError.BUSY
    other = tmp_path / "file"
    other.write_text("mine")
    with pytest.raises(NvdlaError) as caught:
        PortServer(other, RecordingDriver())
    assert caught.value.status is NvError.PATH_ALREADY_EXISTS
    assert other.read_text() == "mine"


def test_a_client_that_vanishes_leaves_no_memory(tmp_path: Path) -> None:
    driver = RecordingDriver()
    with PortServer(tmp_path / "s", driver) as server:
        server.start()
        port = SocketPort(tmp_path / "s", timeout_s=30)
        session = port.initialize()
        port.alloc_mem(session, port.open(session, 1), 64, NvDlaHeap.SYSTEM)
        assert driver.regions
        port.disconnect()
        with SocketPort(tmp_path / "s", timeout_s=30) as other:
            for _ in range(1000):
                if not driver.regions:
                    break
                other.debug_printf("wait")
    assert not driver.regions
    assert not (tmp_path / "s").exists()


def test_a_server_that_ends_is_a_disconnection(tmp_path: Path) -> None:
    with PortServer(tmp_path / "s", RecordingDriver()) as server:
        server.start()
        port = SocketPort(tmp_path / "s", timeout_s=30)
        session = port.initialize()
        port.open(session, 0)
    with pytest.raises(NvdlaError) as caught:
        port.open(session, 0)
    assert caught.value.status is NvError.DISCONNECTED


def test_a_server_that_ends_removes_its_own_socket_only(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = PortServer(path, RecordingDriver())
    path.unlink()
    with PortServer(path, RecordingDriver()) as second:
        second.start()
        first.close()
        assert _still_serves(path)
    assert not path.exists()
    third = PortServer(path, RecordingDriver())
    path.unlink()
    path.write_text("notes")
    third.close()
    assert path.read_text() == "notes"


def test_only_its_owner_may_connect(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
