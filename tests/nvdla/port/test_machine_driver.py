"""Modelled devices behave as devices: memory of their own, zeroed, and usable after a failure."""

from __future__ import annotations

import pytest

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.port import MachineDriver, NvDlaHeap, PhysicalAddress, PhysicalTask, TracedDriver


@pytest.mark.requirement("D-34", "D-42", "DX-5")
def test_each_heap_is_a_memory_of_the_machine() -> None:
    driver = MachineDriver("nv_full", dram_bytes=1 << 20, sram_bytes=1 << 16)
    (machine,) = driver.machines
    for heap, space in ((NvDlaHeap.SYSTEM, MemorySpace.DRAM), (NvDlaHeap.SRAM, MemorySpace.SRAM)):
        region = driver.allocate(0, 100, heap)
        region.data[7] = 42
        place = region.at(7)
        assert place.space is space
        assert machine.memory.read(*place, 1) == b"\x2a"
        machine.memory.write(*region.at(0), b"abc")
        assert region.data[:3].tobytes() == b"abc", "both sides see the same bytes"


@pytest.mark.requirement("D-42", "D-44")
def test_freed_memory_comes_back_zeroed() -> None:
    driver = MachineDriver("nv_small", dram_bytes=1 << 13)
    region = driver.allocate(0, 8192, NvDlaHeap.SYSTEM)
    region.data[:] = 255
    with pytest.raises(NvdlaError) as caught:
        driver.allocate(0, 1, NvDlaHeap.SYSTEM)
    assert caught.value.status is NvError.INSUFFICIENT_MEMORY
    driver.release(0, region)
    again = driver.allocate(0, 8192, NvDlaHeap.SYSTEM)
    assert again.address == region.address
    assert not again.data.any()


@pytest.mark.requirement("D-19", "D-39")
def test_instances_share_nothing() -> None:
    driver = MachineDriver(NV_FULL, 2, dram_bytes=1 << 16)
    first, second = (driver.allocate(number, 64, NvDlaHeap.SYSTEM) for number in (0, 1))
    assert first.address == second.address
    first.data[:] = 1
    assert not second.data.any()


def test_a_heap_that_the_hardware_lacks_has_no_room() -> None:
    with pytest.raises(NvdlaError, match="this nv_small machine has no SRAM") as caught:
        MachineDriver("nv_small", dram_bytes=1 << 16).allocate(0, 1, NvDlaHeap.SRAM)
    assert caught.value.status is NvError.INSUFFICIENT_MEMORY


@pytest.mark.parametrize(("configuration", "count"), [("nv_small", 0), ("nv_unknown", 1)])
def test_a_machine_that_cannot_be_made_is_refused(configuration: str, count: int) -> None:
    with pytest.raises(NvdlaError) as caught:
        MachineDriver(configuration, count)
    assert caught.value.status is NvError.BAD_PARAMETER


@pytest.mark.parametrize("driver_class", [MachineDriver, TracedDriver])
def test_a_task_without_operations_ends_at_once(
    driver_class: type[MachineDriver | TracedDriver],
) -> None:
    driver = driver_class("nv_small")
    region = driver.allocate(0, 40, NvDlaHeap.SYSTEM)
    driver.execute(0, PhysicalTask(0, (region.at(0),), (0, 12, 0)))
    assert driver.num_devices == 1
    assert not driver.machines[0].records
    driver.release(0, region)


def test_a_task_outside_memory_is_refused() -> None:
    driver = MachineDriver("nv_small", dram_bytes=1 << 16)
    task = PhysicalTask(0, (PhysicalAddress(MemorySpace.DRAM, 16),), (0, 12, 0))
    with pytest.raises(NvdlaError) as caught:
        driver.execute(0, task)
    assert caught.value.status is NvError.INVALID_ADDRESS
