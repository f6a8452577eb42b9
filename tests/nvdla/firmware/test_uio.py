"""A mapped device, played by files and a socket."""

from __future__ import annotations

import mmap
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.firmware import DmaRegion, EngineScheduler, UioBus, UioMemory
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.loadable import OperationType
from smelt.nvdla.registers import load_register_map
from tests.nvdla.firmware._hardware import FakeMemory
from tests.nvdla.firmware._tasks import TaskBuilder

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

WINDOW_BYTES = 0x11000 + mmap.PAGESIZE


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "uio0"
    path.write_bytes(bytes(WINDOW_BYTES))
    return path


@pytest.fixture
def line() -> Generator[tuple[socket.socket, socket.socket]]:
    """The interrupt line: our end, and the device's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_registers_are_little_endian_words_of_the_device(device: Path) -> None:
    with UioBus(device, WINDOW_BYTES) as bus:
        bus.write(0x1004, 0x12345678)
        assert bus.read(0x1004) == 0x12345678
    assert device.read_bytes()[0x1004:0x1008] == bytes.fromhex("78563412")


def test_a_second_window_starts_a_page_further(device: Path) -> None:
    with UioBus(device, mmap.PAGESIZE, map_number=1) as bus:
        bus.write(0, 7)
    assert device.read_bytes()[mmap.PAGESIZE] == 7


@pytest.mark.parametrize("address", [-4, 2, WINDOW_BYTES])
def test_what_is_no_register_is_refused(device: Path, address: int) -> None:
    with UioBus(device, WINDOW_BYTES) as bus:
        with pytest.raises(NvdlaError, match="no register at") as caught:
            bus.read(address)
        assert caught.value.status is NvError.INVALID_ADDRESS


def test_an_interrupt_is_enabled_then_awaited(
    device: Path, line: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = line

    def answer() -> None:
        assert theirs.recv(4) == b"\1\0\0\0"
        theirs.send(b"\5\0\0\0")

    thread = threading.Thread(target=answer)
    thread.start()
    with UioBus(device, WINDOW_BYTES, interrupt_file=ours.fileno()) as bus:
        assert bus.wait_for_interrupt(5)
    thread.join(5)


def test_no_interrupt_is_false_after_the_timeout(
    device: Path, line: tuple[socket.socket, socket.socket]
) -> None:
    with UioBus(device, WINDOW_BYTES, interrupt_file=line[0].fileno()) as bus:
        assert not bus.wait_for_interrupt(0.01)


def test_a_device_that_goes_away_is_disconnected(
    device: Path, line: tuple[socket.socket, socket.socket]
) -> None:
    with UioBus(device, WINDOW_BYTES, interrupt_file=line[0].fileno()) as bus:
        line[1].close()
        with pytest.raises(NvdlaError, match="uio0") as caught:
            bus.wait_for_interrupt(1)
        assert caught.value.status is NvError.DISCONNECTED


def test_a_missing_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(NvdlaError, match="uio7") as caught:
        UioBus(tmp_path / "uio7", WINDOW_BYTES)
    assert caught.value.status is NvError.DEVICE_NOT_FOUND


def test_a_window_that_the_device_does_not_have_is_refused(device: Path) -> None:
    with pytest.raises(NvdlaError, match="cannot map") as caught:
        UioBus(device, WINDOW_BYTES, map_number=100)
    assert caught.value.status is NvError.RESOURCE_ERROR


def test_closing_twice_is_harmless(device: Path) -> None:
    bus = UioBus(device, WINDOW_BYTES)
    bus.close()
    bus.close()


def test_memory_is_addressed_as_the_accelerator_sees_it(tmp_path: Path) -> None:
    dram, sram = tmp_path / "dram", tmp_path / "sram"
    for path in (dram, sram):
        path.write_bytes(bytes(mmap.PAGESIZE))
    regions = [
        DmaRegion(MemorySpace.DRAM, 0xC0000000, mmap.PAGESIZE, dram),
        DmaRegion(MemorySpace.SRAM, 0x50000000, mmap.PAGESIZE, sram),
    ]
    with UioMemory(regions) as memory:
        memory.write(MemorySpace.DRAM, 0xC0000010, b"weights")
        memory.write(MemorySpace.SRAM, 0x50000000, b"data")
        assert memory.read(MemorySpace.DRAM, 0xC0000010, 7) == b"weights"
        for space, address, size in (
            (MemorySpace.SRAM, 0xC0000010, 1),
            (MemorySpace.DRAM, 0xC0000000 - 1, 2),
            (MemorySpace.DRAM, 0xC0000000, mmap.PAGESIZE + 1),
        ):
            with pytest.raises(NvdlaError, match="not in a mapped region") as caught:
                memory.read(space, address, size)
            assert caught.value.status is NvError.INVALID_ADDRESS
    assert dram.read_bytes()[0x10:0x17] == b"weights"
    assert sram.read_bytes().startswith(b"data")


def test_one_missing_region_closes_the_others(tmp_path: Path) -> None:
    (tmp_path / "dram").write_bytes(bytes(mmap.PAGESIZE))
    regions = [
        DmaRegion(MemorySpace.DRAM, 0, mmap.PAGESIZE, tmp_path / name) for name in ("dram", "x")
    ]
    with pytest.raises(NvdlaError, match="cannot open"):
        UioMemory(regions)


@pytest.mark.requirement("D-10", "D-11")
def test_the_scheduler_programs_a_mapped_device(
    device: Path, tmp_path: Path, line: tuple[socket.socket, socket.socket]
) -> None:
    task = TaskBuilder()
    task.add(OperationType.RUBIK)
    fake = FakeMemory()
    addresses = task.write(fake)
    dram = tmp_path / "dram"
    dram.write_bytes(fake.data)
    register_map = load_register_map("nv_full")
    status = register_map.register("GLB.S_INTR_STATUS")
    enable = register_map.register("RBK.D_OP_ENABLE")

    def finish() -> None:
        """Be a reshape engine that is done as soon as somebody waits for it."""
        line[1].recv(4)
        with UioBus(device, WINDOW_BYTES) as own:
            assert own.read(enable.address) == 1
            own.write(status.address, status.encode(RUBIK_DONE_STATUS0=1))
        line[1].send(b"\1\0\0\0")

    thread = threading.Thread(target=finish)
    thread.start()
    region = DmaRegion(MemorySpace.DRAM, 0, len(fake.data), dram)
    with (
        UioBus(device, WINDOW_BYTES, interrupt_file=line[0].fileno()) as bus,
        UioMemory([region]) as memory,
    ):
        statistics = EngineScheduler(bus, memory, NV_FULL).execute_task(addresses, timeout_s=5)
    thread.join(5)
    assert [item.op_type for item in statistics.operations] == [OperationType.RUBIK]
