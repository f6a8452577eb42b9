"""The official regression's tasks: their graphs on any hardware, their results in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.nvdla import Loadable, MemorySpace
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL, NV_LARGE, NV_SMALL, Machine
from smelt.nvdla.loadable import CommonOperation, DlaTaskView, interpret
from smelt.nvdla.runtime import DlaImage
from tests.nvdla.firmware._hardware import FakeHardware, FakeMemory

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.nvdla import DmaMemory
    from smelt.nvdla.hardware import Configuration

GOLDENS = (
    "BDMA_L0_0_76a9a4",
    "CDP_L0_0_66cb25",
    "CDP_L0_0_large_fe3167",
    "CDP_L0_0_small_4531af",
    "CONV_D_L0_0_6d2d02",
    "CONV_D_L0_0_large_f394b6",
    "CONV_D_L0_0_small_3c77f6",
    "NN_L0_0_9521de",
    "PDP_L0_0_e21636",
    "PDP_L0_0_large_a57d22",
    "PDP_L0_0_small_fbdf76",
    "RBK_L0_0_6dbb5a",
    "SDP_X1_L0_0_b9bf63",
    "SDP_X1_L0_0_large_4486c3",
    "SDP_X1_L0_0_small_c9894d",
)
MEMORY_BYTES = 1 << 23
DRAM = MemorySpace.DRAM


class Placed:
    """A loadable in memory, every region at a page of its own."""

    def __init__(self, shared: Path, golden: str, memory: DmaMemory) -> None:
        name = golden.rsplit("_", 1)[0]
        (path,) = (shared / "nvdla" / "flatbufs" / "kmd").glob(f"*/{name}_fbuf")
        self.loadable = Loadable.from_bytes(path.read_bytes())
        self.bases: dict[int, int] = {}
        contents = {blob.name: blob.data for blob in self.loadable.blobs}
        end = 0x10000
        for region in self.loadable.memories:
            self.bases[region.id] = end
            for symbol, offset in zip(region.contents, region.offsets, strict=True):
                if symbol:
                    memory.write(DRAM, end + offset, contents[symbol])
            end += -(-max(region.size, 1) // 4096) * 4096
        tasks = [task for task in interpret(self.loadable).tasks if isinstance(task, DlaTaskView)]
        (self.task,) = tasks
        entries = {entry.id: entry for entry in self.loadable.addresses}
        self.addresses = [
            (DRAM, self.bases[entries[number].mem_id] + entries[number].offset)
            for number in self.task.task.address_list
        ]


def configuration_of(golden: str) -> Configuration:
    return NV_LARGE if "_large_" in golden else NV_SMALL if "_small_" in golden else NV_FULL


@pytest.mark.parametrize("golden", GOLDENS)
@pytest.mark.requirement("D-6", "D-7")
def test_every_official_graph_counts_all_its_dependencies_to_zero(
    golden: str, shared: Path
) -> None:
    random = np.random.default_rng(1)
    memory = FakeMemory(MEMORY_BYTES)
    placed = Placed(shared, golden, memory)
    configuration = configuration_of(golden)
    hardware = FakeHardware(configuration, lambda n: int(random.integers(n)))
    scheduler = EngineScheduler(hardware, memory, configuration)
    statistics = scheduler.execute_task(placed.addresses, layout=placed.task.layout)
    count = placed.task.network.num_operations
    assert len(statistics.operations) == count
    _, graph = placed.addresses[placed.task.network.dependency_graph_index]
    size = CommonOperation.size_bytes()
    left = [CommonOperation.from_bytes(memory.data, graph + at * size) for at in range(count)]
    assert [node.dependency_count for node in left] == [0] * count


@pytest.mark.parametrize("golden", [golden for golden in GOLDENS if not golden.startswith("NN")])
@pytest.mark.requirement("D-4", "D-5")
def test_the_machine_leaves_the_golden_in_memory(golden: str, shared: Path) -> None:
    configuration = configuration_of(golden)
    machine = Machine(configuration, MEMORY_BYTES)
    placed = Placed(shared, golden, machine.memory)
    scheduler = EngineScheduler(machine, machine.memory, configuration)
    scheduler.execute_task(placed.addresses, layout=placed.task.layout)
    file = shared / "nvdla" / "golden" / golden / "dla" / "o_000000.dimg"
    image = DlaImage.from_bytes(file.read_bytes())
    tensor = placed.loadable.tensors[-1]
    start = placed.bases[tensor.mem_id] + tensor.offset
    result = machine.memory.view(DRAM)[start : start + image.size]
    expected = result.copy()
    image.write_to(expected)
    assert np.array_equal(result, expected)
