"""The machine as software sees it: groups, pointers, interrupts, faults, memory, estimates."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import weakref

import numpy as np
import pytest

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.hardware import (
    CONFIGURATIONS,
    NV_FULL,
    NV_LARGE,
    NV_SMALL,
    Machine,
    Precision,
    find_configuration,
)
from tests.nvdla.hardware._programs import MEMORY_BYTES, SOURCE, TARGET, Bench

_SIZE = (2, 3, 8)


def _ready_sdp(bench: Bench, values: int = 0) -> np.ndarray:
    cube = np.arange(48, dtype=np.int8).reshape(_SIZE) + np.int8(values)
    bench.put(SOURCE, bench.pack(cube))
    bench.program_sdp(size=_SIZE)
    return cube


def test_an_operation_runs_when_all_its_blocks_are_enabled() -> None:
    bench = Bench(NV_SMALL)
    cube = _ready_sdp(bench)
    bench.enable("SDP")
    assert bench.finish() == 0
    assert bench.registers.read_field("SDP.S_STATUS", "STATUS_0") == 1
    bench.enable("SDP_RDMA")
    assert bench.finish() == 1
    assert bench.registers.read_field("SDP.S_STATUS", "STATUS_0") == 0
    assert np.array_equal(bench.unpack(TARGET, _SIZE, np.int8), cube)


def test_the_second_group_is_programmed_while_the_first_waits_and_runs_after_it() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.enable("SDP")
    bench.set("SDP", S_POINTER=1)
    bench.set("SDP_RDMA", S_POINTER=1)
    _ready_sdp(bench)
    bench.set("SDP", D_DST_BASE_ADDR_LOW=TARGET + 0x1000)
    bench.enable("SDP", "SDP_RDMA")
    assert bench.finish() == 0
    assert bench.registers.read("SDP.S_STATUS") == 1 | 2 << 16
    bench.set("SDP_RDMA", S_POINTER=0)
    bench.enable("SDP_RDMA")
    assert bench.finish() == 0b11
    assert bench.registers.read_field("SDP.S_POINTER", "CONSUMER") == 0
    assert [record.group for record in bench.machine.records] == [0, 1]
    first, second = bench.get(TARGET, 48, np.int8), bench.get(TARGET + 0x1000, 48, np.int8)
    assert np.array_equal(first, second)


def test_an_enabled_group_ignores_writes_and_reads_back_as_written() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.enable("SDP", "SDP_RDMA")
    bench.set("SDP", D_CVT_SCALE=7)
    assert bench.registers.read("SDP.D_CVT_SCALE") == 1
    assert bench.registers.read("SDP.D_OP_ENABLE") == 1


def test_masked_interrupts_set_their_status_but_not_the_line() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.set("GLB", S_INTR_MASK=1)
    bench.enable("SDP", "SDP_RDMA")
    assert not bench.machine.wait_for_interrupt(0)
    assert bench.registers.read("GLB.S_INTR_STATUS") == 1
    bench.set("GLB", S_INTR_MASK=0)
    assert bench.machine.wait_for_interrupt(0)
    bench.set("GLB", S_INTR_STATUS=1)
    assert bench.registers.read("GLB.S_INTR_STATUS") == 0


def test_software_can_set_an_interrupt_itself() -> None:
    bench = Bench(NV_SMALL)
    bench.set("GLB", S_INTR_SET=0b100)
    assert bench.machine.wait_for_interrupt(0)
    assert bench.registers.read("GLB.S_INTR_STATUS") == 0b100


def test_registers_that_only_hardware_sets_ignore_writes() -> None:
    bench = Bench(NV_SMALL)
    bench.set("SDP", S_STATUS=3, D_PERF_LUT_OFLOW=5)
    assert bench.registers.read("SDP.S_STATUS") == 0
    assert bench.registers.read("SDP.D_PERF_LUT_OFLOW") == 0
    assert bench.registers.read("CDMA.S_CBUF_FLUSH_STATUS") == 1


def test_addresses_without_a_register_read_zero_and_ignore_writes() -> None:
    machine = Machine(NV_SMALL, 4096)
    machine.write(0xDEAD0, 1)
    machine.write(3, 1)
    assert machine.read(0xDEAD0) == 0
    assert machine.read(3) == 0


def test_look_up_tables_are_written_and_read_entry_by_entry() -> None:
    bench = Bench(NV_FULL)
    bench.registers.write_fields("SDP.S_LUT_ACCESS_CFG", LUT_TABLE_ID=1, LUT_ACCESS_TYPE=1)
    for value in (5, 0xFFFF, 7):
        bench.registers.write("SDP.S_LUT_ACCESS_DATA", value)
    bench.registers.write_fields("SDP.S_LUT_ACCESS_CFG", LUT_TABLE_ID=1, LUT_ADDR=1)
    assert bench.registers.read("SDP.S_LUT_ACCESS_DATA") == 0xFFFF
    assert bench.registers.read("SDP.S_LUT_ACCESS_DATA") == 7


def _fault(bench: Bench, *blocks: str) -> NvdlaError:
    bench.enable(*blocks)
    with pytest.raises(NvdlaError) as caught:
        bench.finish()
    assert str(bench.machine.faults[0].error) == str(caught.value)
    return caught.value


def test_an_address_outside_memory_hangs_the_engine_and_says_which_bytes() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.set("SDP", D_DST_BASE_ADDR_LOW=0xFFFFF000)
    error = _fault(bench, "SDP", "SDP_RDMA")
    assert error.status is NvError.INVALID_ADDRESS
    assert "0xfffff000" in str(error)
    assert bench.registers.read_field("SDP.S_STATUS", "STATUS_0") == 1


def test_a_surface_that_wraps_around_memory_is_refused() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.set("SDP", D_DST_LINE_STRIDE=0xFFFFFFF8)
    assert _fault(bench, "SDP", "SDP_RDMA").status is NvError.INVALID_ADDRESS


def test_a_huge_cube_with_stride_zero_is_refused_before_it_is_allocated() -> None:
    bench = Bench(NV_SMALL)
    bench.program_sdp(size=(8192, 8192, 8192))
    bench.set("SDP_RDMA", D_SRC_LINE_STRIDE=0, D_SRC_SURFACE_STRIDE=0)
    assert _fault(bench, "SDP", "SDP_RDMA").status is NvError.INVALID_SIZE


def test_a_precision_that_the_configuration_lacks_is_refused() -> None:
    bench = Bench(NV_SMALL)
    bench.program_sdp(size=_SIZE, precision=Precision.FP16)
    error = _fault(bench, "SDP", "SDP_RDMA")
    assert error.status is NvError.NOT_SUPPORTED
    assert "nv_small supports int8" in str(error)


def test_the_second_memory_is_refused_where_there_is_none() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.set("SDP", D_DST_DMA_CFG=0)
    assert "no SRAM" in str(_fault(bench, "SDP", "SDP_RDMA"))


def test_an_operand_that_nothing_brings_is_refused() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.set("SDP", D_DP_BS_CFG=0b10000, D_DP_BS_ALU_CFG=1)
    assert "would wait forever" in str(_fault(bench, "SDP", "SDP_RDMA"))


def test_blocks_that_a_configuration_lacks_do_not_answer() -> None:
    bench = Bench(NV_SMALL)
    bench.set("RBK", D_OP_ENABLE=1)
    assert bench.registers.read("RBK.D_OP_ENABLE") == 0


def test_reset_frees_a_hung_engine() -> None:
    bench = Bench(NV_SMALL)
    _ready_sdp(bench)
    bench.set("SDP", D_DST_BASE_ADDR_LOW=0xFFFFF000)
    _fault(bench, "SDP", "SDP_RDMA")
    bench.machine.reset()
    cube = _ready_sdp(bench, 1)
    bench.enable("SDP", "SDP_RDMA")
    assert bench.finish() == 1
    assert np.array_equal(bench.unpack(TARGET, _SIZE, np.int8), cube)


def test_memory_outside_is_refused_and_untouched() -> None:
    memory = Machine(NV_SMALL, 64, dram_base=0x1000).memory
    memory.write(MemorySpace.DRAM, 0x1000, bytes(range(64)))
    with pytest.raises(NvdlaError, match="outside memory"):
        memory.write(MemorySpace.DRAM, 0x1030, bytes(17))
    assert memory.read(MemorySpace.DRAM, 0x1000, 64) == bytes(range(64))
    with pytest.raises(NvdlaError, match="no SRAM"):
        memory.read(MemorySpace.SRAM, 0, 1)


def test_cycles_are_those_of_the_slower_of_arithmetic_and_memory() -> None:
    slow = dataclasses.replace(NV_SMALL, dram_bytes_per_s=1e6)
    counts: list[int] = []
    for configuration in (NV_SMALL, slow):
        bench = Bench(configuration)
        _ready_sdp(bench)
        bench.enable("SDP", "SDP_RDMA")
        bench.finish()
        record = bench.machine.records[0]
        assert record.dram_bytes == 96
        assert record.cycles == record.mac_cycles + record.stall_cycles
        counts.append(record.cycles)
    assert counts[1] == 96 * 1000
    assert bench.machine.total_cycles == counts[1]
    assert bench.machine.records[0].bound_by == "memory"


def test_the_rom_says_what_the_hardware_is_made_of() -> None:
    bench = Bench(NV_LARGE)
    name = "CFGROM.CFGROM_CDMA_BASE_ATOMIC_C"
    bench.registers.write(name, 1)
    assert bench.registers.read(name) == 64
    assert bench.registers.read("CFGROM.CFGROM_CBUF_BASE_CBUF_BANK_DEPTH") == 512


def test_known_configurations_are_those_of_the_documentation() -> None:
    assert {name: item.macs for name, item in CONFIGURATIONS.items()} == {
        "nv_full": 2048,
        "nv_large": 2048,
        "nv_small": 64,
        "nv_small_256": 256,
        "nv_small_256_full": 256,
        "nv_medium_512": 512,
        "nv_medium_1024_full": 1024,
    }
    assert NV_FULL.buffer_bytes == NV_LARGE.buffer_bytes == 512 * 1024
    assert NV_SMALL.buffer_bytes == 128 * 1024
    with pytest.raises(NvdlaError, match="configurations are nv_full"):
        find_configuration("nv_tiny")


def test_a_configuration_that_cannot_exist_is_refused() -> None:
    with pytest.raises(NvdlaError, match="atomic_c is 0"):
        dataclasses.replace(NV_SMALL, atomic_c=0)
    with pytest.raises(NvdlaError, match="atom_bytes must be even"):
        dataclasses.replace(NV_SMALL, atom_bytes=7)


@pytest.mark.parametrize("source", [SOURCE, MEMORY_BYTES])
def test_a_machine_and_its_memory_go_when_nobody_needs_them(source: int) -> None:
    """Not when garbage is collected: its memory may be all that there is."""
    gc.disable()
    try:
        bench = Bench()
        gone = weakref.ref(bench.machine)
        bench.program_sdp(size=(2, 2, 32))
        bench.set("SDP_RDMA", D_SRC_BASE_ADDR_LOW=source)
        bench.enable("SDP", "SDP_RDMA")
        with contextlib.suppress(NvdlaError):
            bench.finish()
        del bench
        assert gone() is None
    finally:
        gc.enable()
