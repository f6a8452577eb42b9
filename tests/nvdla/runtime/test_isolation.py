"""Networks on one device reach their own memory only, and end when their time is up."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.nvdla import MemorySpace, NvdlaError, NvError, create_runtime
from smelt.nvdla.hardware import NV_FULL, AddressSpan, Machine, Precision, TaskAccessLimits
from smelt.nvdla.loadable import (
    Address,
    Loadable,
    Memory,
    MemoryFlags,
    PdpSurface,
)
from smelt.nvdla.port import (
    LocalPort,
    MachineDriver,
    NvDlaHeap,
    PhysicalTask,
    PortServer,
    SocketPort,
)
from smelt.nvdla.registers import RegisterFile
from tests.nvdla.hardware._programs import SOURCE, TARGET, Bench
from tests.nvdla.runtime.test_hostile_loadables import SOUND, pooling, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE_BYTES = 4096
FAR_BYTES = 64 << 10


def add_memory(loadable: Loadable, size: int) -> Loadable:
    """Give a loadable one more memory, and its task the address of it."""
    number = len(loadable.memories)
    memory = Memory(number, 0, MemoryFlags.ALLOC, size, PAGE_BYTES)
    address = Address(len(loadable.addresses), number, 0, size)
    task = replace(loadable.tasks[0], address_list=(*loadable.tasks[0].address_list, address.id))
    return replace(
        loadable,
        memories=(*loadable.memories, memory),
        addresses=(*loadable.addresses, address),
        tasks=(task, *loadable.tasks[1:]),
    )


def reaching(side: str, **fields: int) -> Loadable:
    """A pooling whose input or output leads elsewhere."""
    cube = replace(getattr(SOUND, side), **fields)
    return pooling(replace(SOUND, **{side: cube}))


def with_statistics(distance: int) -> Loadable:
    """A pooling of as many regions as it takes for the last one's counters to lie far away."""
    return add_memory(pooling(num_rois=distance // 44, stat_list_index=7), 44)


ATTACKS: dict[str, tuple[Callable[[int], Loadable], str]] = {
    "reads it": (
        lambda distance: reaching("src_data", offset=distance),
        r"PDP_RDMA\.D_SRC_BASE_ADDR accesses DRAM .*, which is outside the memory",
    ),
    "writes it": (
        lambda distance: reaching("dst_data", offset=distance),
        r"PDP\.D_DST_BASE_ADDR accesses DRAM .*, which is outside the memory of this task: DRAM",
    ),
    "strides into it": (
        lambda distance: pooling(
            PdpSurface(
                src_data=replace(SOUND.src_data, channel=64),
                dst_data=replace(SOUND.dst_data, channel=64, surf_stride=distance),
            )
        ),
        r"PDP\.D_DST_BASE_ADDR accesses DRAM",
    ),
    "lets the scheduler write counters there": (
        lambda distance: with_statistics(distance),
        r"a descriptor accesses DRAM",
    ),
}


@pytest.fixture
def driver() -> MachineDriver:
    return MachineDriver(NV_FULL, dram_bytes=1 << 20, sram_bytes=1 << 16, timeout_s=5.0)


@pytest.mark.requirement("D-42")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_network_does_not_reach_another_ones_memory(driver: MachineDriver, attack: str) -> None:
    make, message = ATTACKS[attack]
    with create_runtime(LocalPort(driver)) as hostile, create_runtime(LocalPort(driver)) as victim:
        hostile.load(make(FAR_BYTES).to_bytes())
        source = hostile.allocate_system_memory(64)
        target = hostile.allocate_system_memory(64)
        hostile.bind_input_tensor(0, source.mem_handle)
        hostile.bind_output_tensor(0, target.mem_handle)
        secrets = [victim.allocate_system_memory(16 << 10) for _ in range(32)]
        for secret in secrets:
            secret.data[:] = 42
        with pytest.raises(NvdlaError, match=message) as caught:
            hostile.submit()
        assert caught.value.status is NvError.INVALID_ADDRESS
        assert all((secret.data == 42).all() for secret in secrets)
        assert not (target.data == 42).any()
        assert run(victim, pooling()) == bytes(range(64))


@pytest.mark.parametrize("entry", [0, 1, 2, 3])
def test_engines_do_not_write_their_own_tasks_descriptors(
    driver: MachineDriver, entry: int
) -> None:
    """Else a task could change its graph after it was checked."""
    with (
        create_runtime(LocalPort(driver)) as runtime,
        pytest.raises(NvdlaError, match="overlaps the task's descriptors") as caught,
    ):
        run(runtime, reaching("dst_data", address=entry))
    assert caught.value.status is NvError.INVALID_ADDRESS


def test_what_a_network_leaves_in_its_pages_is_gone_when_another_gets_them(
    driver: MachineDriver,
) -> None:
    """An engine may write the rest of an allocation's last page, which no application sees."""
    machine = driver.machines[0]
    region = driver.allocate(0, 40, NvDlaHeap.SYSTEM)
    whole = machine.memory.view(MemorySpace.DRAM)
    whole[:PAGE_BYTES] = 7
    driver.release(0, region)
    again = driver.allocate(0, 8, NvDlaHeap.SYSTEM)
    assert again.address == region.address
    assert not whole[:PAGE_BYTES].any()


def test_an_address_in_memory_that_nobody_allocated_is_refused(driver: MachineDriver) -> None:
    region = driver.allocate(0, 40, NvDlaHeap.SYSTEM)
    task = PhysicalTask(0, (region.at(0), region.at(PAGE_BYTES)), (0, 12, 0))
    with pytest.raises(NvdlaError, match=r"address 1 of the task.*not in allocated memory"):
        driver.execute(0, task)


def test_one_task_finds_nothing_in_the_buffer_and_tables_of_the_last() -> None:
    bench = Bench()
    machine = bench.machine
    bench.put(SOURCE, np.full((4, 4, 32), 3, np.int8))
    bench.program_convolution(size=(4, 4, 32), kernels=32, kernel=(1, 1), output=(4, 4))
    bench.program_sdp(size=(4, 4, 32), flying=True)
    bench.convolve()
    machine.write(machine.register_map.register("SDP.S_LUT_ACCESS_CFG").address, 1 << 17)
    machine.write(machine.register_map.register("SDP.S_LUT_ACCESS_DATA").address, 5)
    whole = TaskAccessLimits((AddressSpan(MemorySpace.DRAM, 0, 1 << 21),))
    with machine.limited(whole):
        machine.write(machine.register_map.register("SDP.S_LUT_ACCESS_CFG").address, 0)
        assert bench.registers.read("SDP.S_LUT_ACCESS_DATA") == 0
        mode = bench.registers.read("CDMA.D_MISC_CFG")
        for block in ("CDMA", "CSC"):
            bench.set(block, D_MISC_CFG=mode | 1 << 16)  # reuse data that are not there any more
        bench.put(SOURCE, np.zeros((4, 4, 32), np.int8))
        bench.program_convolution(size=(4, 4, 32), kernels=32, kernel=(1, 1), output=(4, 4))
        bench.convolve()
    assert not bench.get(TARGET, 512, np.int8).any()


def test_a_machine_runs_one_task_at_a_time() -> None:
    machine = Machine(NV_FULL, 1 << 12)
    with machine.limited(TaskAccessLimits(())):
        with pytest.raises(NvdlaError, match="another task is running") as caught:
            machine.limited(TaskAccessLimits(())).__enter__()
        assert caught.value.status is NvError.BUSY
    with machine.limited(TaskAccessLimits(())):
        pass


@pytest.mark.requirement("D-41")
def test_an_operation_that_takes_too_long_ends_with_its_task() -> None:
    """Nothing asks the engine: it looks at the clock itself."""
    bench = Bench(exact_fp16=True)
    size = (16, 16, 512)
    bench.program_convolution(
        size=size, kernels=512, kernel=(1, 1), output=(16, 16), precision=Precision.FP16
    )
    bench.program_sdp(size=(16, 16, 512), precision=Precision.FP16, flying=True)
    rng = np.random.default_rng(0)
    bench.put(SOURCE, rng.standard_normal(size).astype(np.float16))
    begin = time.process_time()
    whole = AddressSpan(MemorySpace.DRAM, 0, 1 << 21)
    limits = TaskAccessLimits((whole,), deadline_s=time.monotonic() + 0.2)
    with (
        bench.machine.limited(limits),
        pytest.raises(NvdlaError, match="timed out while an engine was still running") as caught,
    ):
        bench.convolve()
    assert caught.value.status is NvError.TIMEOUT
    assert time.process_time() - begin < 2.0


LARGE = (64, 8192, 32)
LARGE_TARGET = 1 << 24
IN_OUT = ("IN", "OUT")


def _program_large(bench: Bench, engine: str) -> None:
    """Program an engine for a cube of 16 MiB."""
    line, surface = bench.strides(*LARGE[:2])
    target: dict[str, int] = {
        "D_DST_BASE_ADDR_LOW": LARGE_TARGET,
        "D_DST_LINE_STRIDE": line,
        "D_DST_SURFACE_STRIDE": surface,
    }
    source: dict[str, int] = {
        "D_SRC_BASE_ADDR_LOW": 0,
        "D_SRC_LINE_STRIDE": line,
        "D_SRC_SURFACE_STRIDE": surface,
    }
    sizes = {"WIDTH": LARGE[1] - 1, "HEIGHT": LARGE[0] - 1, "CHANNEL": LARGE[2] - 1}
    if engine == "PDP":
        cubes = {f"D_DATA_CUBE_{way}_{name}": n for name, n in sizes.items() for way in IN_OUT}
        del cubes["D_DATA_CUBE_OUT_CHANNEL"]
        bench.set("PDP", D_OPERATION_MODE_CFG=1 << 4, D_DST_RAM_CFG=1, **cubes, **target)
        bench.set("PDP", D_POOLING_KERNEL_CFG=7 | 7 << 8, D_POOLING_PADDING_CFG=4 | 4 << 4)
        bench.set("PDP_RDMA", D_SRC_RAM_CFG=1, **source)
    elif engine == "CDP":
        bench.set("CDP", D_DATA_FORMAT=0, D_LRN_CFG=3, D_DST_DMA_CFG=1, **target)
        cubes = {f"D_DATA_CUBE_{name}": size for name, size in sizes.items()}
        bench.set("CDP_RDMA", D_SRC_DMA_CFG=1, **cubes, **source)
    else:
        bench.program_sdp(size=LARGE)
        bench.set("SDP", D_DP_BS_CFG=0, D_CVT_SHIFT=3, **target)
        bench.set("SDP_RDMA", **source)


@pytest.mark.requirement("D-41")
@pytest.mark.parametrize("engine", ["PDP", "CDP", "SDP"])
def test_a_large_cube_ends_with_its_task(engine: str) -> None:
    bench = Bench()
    bench.machine = Machine(NV_FULL, 1 << 25)
    bench.registers = RegisterFile(bench.machine, bench.machine.register_map)
    _program_large(bench, engine)
    bench.enable(engine, f"{engine}_RDMA")
    whole = AddressSpan(MemorySpace.DRAM, 0, 1 << 25)
    begin = time.process_time()
    limits = TaskAccessLimits((whole,), deadline_s=time.monotonic() + 0.05)
    with (
        bench.machine.limited(limits),
        pytest.raises(NvdlaError, match="timed out while an engine was still running") as caught,
    ):
        bench.finish()
    assert caught.value.status is NvError.TIMEOUT
    assert time.process_time() - begin < 2.0


class Broken:
    """An engine with a fault that nobody foresaw, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("smelt.nvdla.hardware._chains.run_pdp", self.run)

    def run(self, *_: object) -> None:
        self._monkeypatch.undo()
        raise ValueError("shapes that do not match")


def test_an_engine_that_breaks_does_not_take_the_device_with_it(
    driver: MachineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_runtime(LocalPort(driver)) as runtime:
        Broken(monkeypatch)
        with pytest.raises(ValueError, match="do not match"):
            run(runtime, pooling())
    with create_runtime(LocalPort(driver)) as runtime:
        assert run(runtime, pooling()) == bytes(range(64))


def test_a_server_says_that_an_engine_broke_and_goes_on(
    driver: MachineDriver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PortServer(tmp_path / "s", driver) as server:
        server.start()
        with SocketPort(tmp_path / "s", timeout_s=30) as port, create_runtime(port) as runtime:
            Broken(monkeypatch)
            with pytest.raises(NvdlaError, match="ValueError: shapes that do not match") as caught:
                run(runtime, pooling())
            assert caught.value.status is NvError.INVALID_STATE
            assert "a request of kind SUBMIT failed" in caplog.text
            runtime.unload()
            assert run(runtime, pooling()) == bytes(range(64))
