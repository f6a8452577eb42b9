"""Tasks of one operation, and the registers that it leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.loadable import (
    BdmaSurface,
    BdmaTransfer,
    ConvOperation,
    ConvSurface,
    MemoryType,
    OperationType,
    SdpSurface,
)
from tests.nvdla.firmware._hardware import FakeHardware, FakeMemory
from tests.nvdla.firmware._tasks import (
    DATA,
    SDP,
    TaskBuilder,
    cube,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.loadable import Operation, Surface

FLY = MemoryType.ON_THE_FLY


class Words:
    """The registers after a task, by name and field."""

    def __init__(self, hardware: FakeHardware) -> None:
        self._hardware = hardware

    def __getitem__(self, name: str) -> int:
        return self._hardware.words[name, 0]

    def __contains__(self, name: str) -> bool:
        return (name, 0) in self._hardware.words

    def fields(self, name: str) -> dict[str, int]:
        return self._hardware.map.register(name).decode(self[name])


def single(op_type: OperationType, operation: Operation, surface: Surface) -> TaskBuilder:
    """A task of one operation, and of an SDP that takes what a convolution makes."""
    task = TaskBuilder()
    task.add(op_type)
    task.contents[0] = operation, surface
    if isinstance(operation, ConvOperation) and isinstance(surface, ConvSurface):
        task.fuse(0, task.add(OperationType.SDP))
        taken = replace(
            SDP,
            conv_mode=operation.conv_mode,
            batch_num=operation.batch,
            src_precision=operation.out_precision,
        )
        source = replace(surface.dst_data, type=FLY, address=-1)
        task.contents[1] = taken, SdpSurface(src_data=source, dst_data=cube())
    return task


def execute(
    task: TaskBuilder, configuration: Configuration = NV_FULL, memory: FakeMemory | None = None
) -> Words:
    memory = memory or FakeMemory()
    hardware = FakeHardware(configuration, lambda _: 0)
    EngineScheduler(hardware, memory, configuration).execute_task(task.write(memory), timeout_s=5)
    return Words(hardware)


def conv_surface(**values: Any) -> ConvSurface:
    weights = replace(cube(256), size=128)
    usual = ConvSurface(src_data=cube(), dst_data=cube(memory_type=FLY), weight_data=weights)
    return replace(usual, **values)


def bdma_surface(**values: int) -> BdmaSurface:
    transfer = BdmaTransfer(
        source_address=DATA,
        destination_address=DATA,
        line_size=64,
        line_repeat=3,
        source_line=96,
        destination_line=64,
        surface_repeat=1,
        source_surface=288,
        destination_surface=192,
    )
    transfer = replace(transfer, **values)
    return BdmaSurface(num_transfers=1, transfers=(transfer,) * 20)
