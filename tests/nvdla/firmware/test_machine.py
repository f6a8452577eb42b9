"""The scheduler and the machine together: memories, regions, hostile descriptors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL, Machine
from smelt.nvdla.loadable import (
    BdmaOperation,
    BdmaSurface,
    BdmaTransfer,
    DataCube,
    MemoryType,
    OperationEvent,
    OperationType,
    PdpSurface,
    Roi,
)
from tests.nvdla.firmware._graphs import task_graphs
from tests.nvdla.firmware._hardware import FakeMemory
from tests.nvdla.firmware._tasks import (
    DATA,
    GRAPH,
    LUTS,
    NETWORK,
    OPERATIONS,
    PDP,
    PLACES,
    SURFACES,
    TaskBuilder,
)

DRAM, SRAM = MemorySpace.DRAM, MemorySpace.SRAM
SRAM_BASE = 0x5000_0000
MEMORY_BYTES = 1 << 20
ON_CHIP = len(PLACES)
"""An address-list entry behind the usual ones."""


def make_machine() -> Machine:
    return Machine(NV_FULL, MEMORY_BYTES, 1 << 16, sram_base=SRAM_BASE)


def load(machine: Machine, memory: FakeMemory) -> None:
    machine.memory.write(DRAM, 0, memory.data)


def copy_out(width: int, height: int, **source: int) -> PdpSurface:
    """A pooling of 1 x 1: it copies a cube to the data's second half."""
    usual = DataCube(
        address=DATA,
        width=width,
        height=height,
        channel=32,
        line_stride=32 * 16,
        surf_stride=32 * 16 * 16,
    )
    target = replace(usual, offset=0x4000, line_stride=32 * width)
    return PdpSurface(src_data=replace(usual, **source), dst_data=target)


def result_of(machine: Machine, width: int, height: int) -> np.ndarray:
    start = PLACES[DATA] + 0x4000
    size = width * height * 32
    return machine.memory.view(DRAM)[start : start + size].reshape(height, width, 32)


def picture() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 100, (16, 16, 32), dtype=np.uint8)


def test_a_picture_goes_through_sram() -> None:
    task = TaskBuilder()
    bridge, pooling = task.add(OperationType.BDMA), task.add(OperationType.PDP)
    task.connect(bridge, pooling, OperationEvent.COMPLETED)
    transfer = BdmaTransfer(
        source_address=DATA,
        destination_address=ON_CHIP,
        line_size=512,
        line_repeat=16,
        source_line=512,
        destination_line=512,
        surface_repeat=1,
        source_surface=8192,
        destination_surface=8192,
    )
    surface = BdmaSurface(
        destination_type=MemoryType.SRAM, num_transfers=1, transfers=(transfer,) * 20
    )
    task.contents[bridge] = BdmaOperation(num_transfers=1), surface
    task.contents[pooling] = PDP, copy_out(16, 16, type=MemoryType.SRAM, address=ON_CHIP)
    memory, machine, image = FakeMemory(MEMORY_BYTES), make_machine(), picture()
    addresses = [*task.write(memory), (SRAM, SRAM_BASE)]
    load(machine, memory)
    machine.memory.write(DRAM, PLACES[DATA], image.tobytes())
    EngineScheduler(machine, machine.memory, NV_FULL).execute_task(addresses, timeout_s=5)
    assert np.array_equal(result_of(machine, 16, 16), image)


@pytest.mark.parametrize(("left", "top"), [(0, 0), (5, 2), (12, 12)])
def test_a_dynamic_region_cuts_its_input_from_the_picture(left: int, top: int) -> None:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    task.contents[0] = PDP, copy_out(4, 4, address=-1)
    memory, machine, image = FakeMemory(MEMORY_BYTES), make_machine(), picture()
    network = replace(task.network(), dynamic_roi=1, input_layer=0, surface_index=DATA)
    addresses = task.write(memory, network=network)
    task.write_rois(memory, [Roi(left=32 * left, top=top)])  # left counts bytes, not pixels
    load(machine, memory)
    machine.memory.write(DRAM, PLACES[DATA], image.tobytes())
    EngineScheduler(machine, machine.memory, NV_FULL).execute_task(addresses, timeout_s=5)
    assert np.array_equal(result_of(machine, 4, 4), image[top : top + 4, left : left + 4])


def test_an_operation_that_the_machine_refuses_ends_the_task_with_its_reason() -> None:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    task.contents[0] = PDP, copy_out(4, 4, offset=MEMORY_BYTES)
    memory, machine = FakeMemory(MEMORY_BYTES), make_machine()
    addresses = task.write(memory)
    load(machine, memory)
    scheduler = EngineScheduler(machine, machine.memory, NV_FULL)
    with pytest.raises(
        NvdlaError, match=r"hardware rejected .* operation 0 \(PDP\) is running"
    ) as caught:
        scheduler.execute_task(addresses, timeout_s=5)
    assert caught.value.status is NvError.INVALID_ADDRESS


@given(task_graphs(most_stages=4), st.data())
def test_damaged_descriptors_end_in_an_error_or_in_a_result(
    task: TaskBuilder, data: st.DataObject
) -> None:
    memory, machine = FakeMemory(MEMORY_BYTES), make_machine()
    addresses = task.write(memory)
    count = len(task.operations) * task.num_rois
    places = ((NETWORK, 40), (GRAPH, 36 * count), (OPERATIONS, 116 * count))
    for _ in range(data.draw(st.integers(1, 6))):
        which, size = data.draw(st.sampled_from((*places, (SURFACES, 644 * count), (LUTS, 2800))))
        at = PLACES[which] + data.draw(st.integers(0, size - 1))
        memory.data[at] = data.draw(st.integers(0, 255))
    load(machine, memory)
    scheduler = EngineScheduler(machine, machine.memory, NV_FULL)
    try:
        scheduler.execute_task(addresses, timeout_s=0.2)
    except NvdlaError as error:
        problem = str(error)
    else:
        problem = "none"
    assert problem
