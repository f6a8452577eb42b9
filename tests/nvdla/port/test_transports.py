"""Every transport behaves as the portability API says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.port import LinuxPort, LocalPort, NvDlaHeap, NvDlaMemDesc, NvDlaTask, SocketPort
from tests.support.nvdla_driver import FAILING_BYTE, FakeDeviceFile, RecordingDriver

if TYPE_CHECKING:
    from collections.abc import Generator

    from smelt.nvdla.port import PinnedMemory, Port

ROOT = Path(__file__).resolve().parents[3]


def _open_fake(instance: int) -> FakeDeviceFile:
    if instance > 1:
        raise FileNotFoundError(f"no node {instance}")
    return FakeDeviceFile(RecordingDriver(), instance)


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """A driver in a process of its own."""
    path = tmp_path_factory.mktemp("dla") / "s"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.nvdla_driver", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield path
    process.terminate()
    process.wait()
    process.stdout.close()


@pytest.fixture(params=["call", "socket", "ioctl"])
def port(request: pytest.FixtureRequest) -> Generator[Port]:
    if request.param == "call":
        with LocalPort(RecordingDriver()) as made:
            yield made
    elif request.param == "socket":
        with SocketPort(request.getfixturevalue("socket_path"), timeout_s=30) as connected:
            yield connected
    else:
        with LinuxPort(_open_fake) as linux:
            yield linux


@pytest.fixture
def opened(port: Port) -> tuple[Port, int, int]:
    session = port.initialize()
    return port, session, port.open(session, 0)


def _task(number: int, *memory: PinnedMemory, offset: int = 0) -> NvDlaTask:
    places = tuple(NvDlaMemDesc(item.mem_handle, offset=offset) for item in memory)
    return NvDlaTask(number, places, (0, 11, 0))


@pytest.mark.requirement("D-13", "D-36", "D-41")
def test_a_task_reads_and_writes_pinned_memory(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    source = port.alloc_mem(session, device, 100, NvDlaHeap.SYSTEM)
    target = port.alloc_mem(session, device, 100, NvDlaHeap.SYSTEM)
    for value in (1, 7):
        source.data[:] = value
        port.submit(session, device, [_task(0, source, target)])
        np.testing.assert_array_equal(target.data, np.full(100, value + 1, np.uint8))


def test_an_offset_leads_into_the_memory(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    source = port.alloc_mem(session, device, 8, NvDlaHeap.SYSTEM)
    target = port.alloc_mem(session, device, 8, NvDlaHeap.SYSTEM)
    source.data[:] = np.arange(8)
    port.submit(session, device, [_task(0, source, target, offset=6)])
    np.testing.assert_array_equal(target.data, [0, 0, 0, 0, 0, 0, 7, 8])


def test_several_tasks_run_in_order(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    memory = [port.alloc_mem(session, device, 4, NvDlaHeap.SYSTEM) for _ in range(3)]
    tasks = [_task(0, memory[0], memory[1]), _task(1, memory[1], memory[2])]
    port.submit(session, device, tasks)
    assert bytes(memory[2].data) == b"\2\2\2\2"


@pytest.mark.requirement("D-34", "D-42", "DX-5")
def test_both_heaps_give_zeroed_memory(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    for heap in NvDlaHeap:
        memory = port.alloc_mem(session, device, 4097, heap)
        assert memory.mem_handle
        assert memory.data.shape == (4097,)
        assert not memory.data.any()


@pytest.mark.requirement("D-42", "D-33")
@pytest.mark.parametrize("size", [0, -1, 1 << 32, 1 << 40])
def test_sizes_that_32_bits_cannot_hold_are_refused(
    size: int, opened: tuple[Port, int, int]
) -> None:
    port, session, device = opened
    with pytest.raises(NvdlaError) as caught:
        port.alloc_mem(session, device, size, NvDlaHeap.SYSTEM)
    assert caught.value.status is NvError.INVALID_SIZE


@pytest.mark.requirement("D-42", "D-43")
def test_memory_that_does_not_fit_is_refused(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    with pytest.raises(NvdlaError) as caught:
        port.alloc_mem(session, device, 2 << 20, NvDlaHeap.SYSTEM)
    assert caught.value.status is NvError.INSUFFICIENT_MEMORY


@pytest.mark.requirement("D-44")
def test_memory_is_freed_once(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    memory = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
    with pytest.raises(NvdlaError) as caught:
        port.free_mem(session, device, memory.mem_handle, memory.data, 32)
    assert caught.value.status is NvError.BAD_PARAMETER
    port.free_mem(session, device, memory.mem_handle, memory.data, 64)
    with pytest.raises(NvdlaError) as caught:
        port.free_mem(session, device, memory.mem_handle, memory.data, 64)
    assert caught.value.status is NvError.BAD_PARAMETER
    with pytest.raises(NvdlaError) as caught:
        port.submit(session, device, [_task(0, memory)])
    assert caught.value.status is NvError.BAD_PARAMETER


@pytest.mark.requirement("D-37", "D-38")
def test_a_destroyed_session_is_gone_with_its_devices(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
    port.destroy(session)
    port.destroy(session)
    with pytest.raises(NvdlaError) as caught:
        port.open(session, 0)
    assert caught.value.status is NvError.BAD_PARAMETER
    again = port.initialize()
    assert again != session
    assert port.open(again, 0)


@pytest.mark.requirement("D-39", "D-40")
def test_instances_are_opened_and_closed(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    second = port.open(session, 1)
    assert second != device
    for instance in (2, -1):
        with pytest.raises(NvdlaError) as caught:
            port.open(session, instance)
        assert caught.value.status is NvError.BAD_PARAMETER
    port.close(session, second)
    with pytest.raises(NvdlaError) as caught:
        port.close(session, second)
    assert caught.value.status is NvError.BAD_PARAMETER


@pytest.mark.requirement("DX-5", "D-36")
def test_a_task_has_at_most_6144_addresses(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    memory = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
    place = NvDlaMemDesc(memory.mem_handle)
    port.submit(session, device, [NvDlaTask(0, (place,) * 6144)])
    with pytest.raises(NvdlaError) as caught:
        port.submit(session, device, [NvDlaTask(0, (place,) * 6145)])
    assert caught.value.status is NvError.BAD_PARAMETER


@pytest.mark.parametrize("count", [0, 25])
def test_a_submission_has_1_to_24_tasks(count: int, opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    memory = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
    with pytest.raises(NvdlaError) as caught:
        port.submit(session, device, [_task(0, memory)] * count)
    assert caught.value.status is NvError.BAD_PARAMETER


@pytest.mark.requirement("D-35")
def test_an_offset_outside_its_memory_is_refused(opened: tuple[Port, int, int]) -> None:
    port, session, device = opened
    memory = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
    for offset in (64, 1 << 33, -1):
        with pytest.raises(NvdlaError) as caught:
            port.submit(session, device, [_task(0, memory, offset=offset)])
        assert caught.value.status is NvError.INVALID_ADDRESS


@pytest.mark.requirement("D-41", "D-33")
def test_an_engine_that_fails_is_reported(port: Port) -> None:
    session = port.initialize()
    device = port.open(session, 0)
    memory = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
    memory.data[0] = FAILING_BYTE
    with pytest.raises(NvdlaError, match="does not answer") as caught:
        port.submit(session, device, [_task(0, memory)])
    assert caught.value.status is NvError.TIMEOUT
    memory.data[0] = 0
    port.submit(session, device, [_task(0, memory)])


@pytest.mark.requirement("D-45")
def test_the_debug_console_takes_text(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="smelt.nvdla.port"):
        port.debug_printf("layer %d of %s", 3, "lenet")
    assert "layer 3 of lenet" in caplog.text
