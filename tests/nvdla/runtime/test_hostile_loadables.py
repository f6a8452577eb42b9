"""Hostile loadables through the whole stack: driver, transport, scheduler, machine.

Each is refused with its code and a reason; afterwards the same device runs a sound one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from smelt.nvdla import NvdlaError, NvError, create_runtime
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.loadable import (
    Blob,
    CommonOperation,
    Consumer,
    DataCube,
    Loadable,
    MemoryFlags,
    MemoryType,
    NetworkDescriptor,
    OperationEvent,
    OperationType,
    PdpOperation,
    PdpSurface,
    Task,
)
from smelt.nvdla.port import LocalPort, MachineDriver
from tests.support.nvdla_loadables import pooling_loadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla import DmaMemory, RegisterBus, Runtime
    from smelt.nvdla.hardware import Machine

TIMEOUT_S = 0.2
ROOMY_TIMEOUT_S = 1.5
"""Where the same driver has to end right work, too, on a machine that is busy."""
NO_EDGE = Consumer(-1, 0)
CUBE = DataCube(
    type=MemoryType.DRAM, address=4, size=64, width=2, height=1, channel=32,
    line_stride=64, surf_stride=64,
)  # fmt: skip
SOUND = PdpSurface(src_data=CUBE, dst_data=replace(CUBE, address=5))


def driver_of_one(
    connect: Callable[[Machine], tuple[RegisterBus, DmaMemory]] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> MachineDriver:
    return MachineDriver(
        NV_FULL, dram_bytes=1 << 20, sram_bytes=1 << 16, timeout_s=timeout_s, connect=connect
    )


def pooling(
    surface: PdpSurface = SOUND, edges: tuple[Consumer, ...] = (NO_EDGE,) * 6, **network: Any
) -> Loadable:
    """A pooling of 1 x 1, which copies its input; or one that is wrong somewhere."""
    base = pooling_loadable()
    first = NetworkDescriptor.from_bytes(base.blobs[0].data)
    operation = PdpOperation(split_num=1, pool_mode=1, stride_x=1, stride_y=1)
    common = CommonOperation(
        op_type=OperationType.PDP, consumers=edges, fused_parent=NO_EDGE, roi_index=0
    )
    contents = (
        replace(first, **network).to_bytes(),
        common.to_bytes(),
        operation.to_bytes().ljust(116, b"\0"),
        surface.to_bytes().ljust(644, b"\0"),
    )
    blobs = tuple(_filled(blob, data) for blob, data in zip(base.blobs, contents, strict=True))
    return replace(base, blobs=blobs, relocations=())


def _filled(blob: Blob, data: bytes) -> Blob:
    return replace(blob, data=data[: blob.size].ljust(blob.size, b"\0"))


def run(runtime: Runtime, loadable: Loadable) -> bytes:
    runtime.load(loadable.to_bytes())
    source = runtime.allocate_system_memory(64)
    target = runtime.allocate_system_memory(64)
    runtime.bind_input_tensor(0, source.mem_handle)
    runtime.bind_output_tensor(0, target.mem_handle)
    source.data[:] = range(64)
    runtime.submit()
    return target.data.tobytes()


def cycle() -> Loadable:
    """A pooling before a normalisation that is before the pooling."""
    base = pooling(num_operations=2, op_head=(-1, -1, -1, 0, 1, -1))
    to_cdp = (*(NO_EDGE,) * 4, Consumer(1, OperationEvent.COMPLETED), NO_EDGE)
    to_pdp = (*(NO_EDGE,) * 3, Consumer(0, OperationEvent.COMPLETED), *(NO_EDGE,) * 2)
    graph = b"".join(
        CommonOperation(
            index=number, op_type=kind, dependency_count=1, consumers=edges, fused_parent=NO_EDGE
        ).to_bytes()
        for number, (kind, edges) in enumerate(
            ((OperationType.PDP, to_cdp), (OperationType.CDP, to_pdp))
        )
    )
    return with_memory(base, 1, graph)


def with_memory(loadable: Loadable, number: int, data: bytes) -> Loadable:
    memories = list(loadable.memories)
    blobs = list(loadable.blobs)
    memories[number] = replace(memories[number], size=len(data))
    blobs[number] = replace(blobs[number], size=len(data), data=data)
    return replace(loadable, memories=tuple(memories), blobs=tuple(blobs))


def with_fields(number: int, **fields: Any) -> Loadable:
    loadable = pooling()
    memories = list(loadable.memories)
    memories[number] = replace(memories[number], **fields)
    return replace(loadable, memories=tuple(memories))


def with_cube(**fields: Any) -> Loadable:
    return pooling(replace(SOUND, dst_data=replace(SOUND.dst_data, **fields)))


def with_cubes(**fields: Any) -> Loadable:
    source, target = (replace(cube, **fields) for cube in (SOUND.src_data, SOUND.dst_data))
    return pooling(replace(SOUND, src_data=source, dst_data=target))


def with_address(**fields: Any) -> Loadable:
    loadable = pooling()
    last = replace(loadable.addresses[6], **fields)
    return replace(loadable, addresses=(*loadable.addresses[:6], last))


def with_task(**fields: Any) -> Loadable:
    loadable = pooling()
    return replace(loadable, tasks=(replace(loadable.tasks[0], **fields),))


HOSTILE: tuple[tuple[str, Loadable, NvError, str], ...] = (
    ("a cycle", cycle(), NvError.BAD_PARAMETER, "form a cycle"),
    ("memory of 2^63 bytes", with_fields(6, size=1 << 63), NvError.INVALID_SIZE, "allocation"),
    ("memory beyond the device", with_fields(6, size=1 << 31),
     NvError.INSUFFICIENT_MEMORY, "SRAM"),
    ("a size that wraps", with_address(offset=(1 << 64) - 1, size=2),
     NvError.INVALID_ADDRESS, "outside memory 6"),
    ("operations times regions", pooling(num_operations=60000, num_rois=60000),
     NvError.RESOURCE_ERROR, "at most"),
    ("a graph behind memory", pooling(num_operations=30000), NvError.INVALID_ADDRESS, "outside"),
    ("a cube behind memory", with_cube(offset=1 << 31), NvError.INVALID_ADDRESS, "outside"),
    ("surfaces that are far apart", with_cubes(surf_stride=(1 << 32) - 64, channel=64),
     NvError.INVALID_ADDRESS, "outside"),
    ("blobs that overlap", with_fields(3, contents=("task-0-addr0", "task-0-dep_graph"),
     offsets=(0, 39)), NvError.INVALID_STATE, "overlap"),
    ("a missing blob", with_fields(3, contents=("gone",)), NvError.INVALID_STATE, "gone"),
    ("a blob behind its memory", with_fields(3, offsets=(1 << 63,)),
     NvError.INVALID_STATE, "too large"),
    ("no task of that number", replace(pooling(), tasks=(Task(5, 1, -1, (0,)),)),
     NvError.BAD_PARAMETER, "task 0"),
    ("an unknown interface", with_task(interface=9), NvError.BAD_PARAMETER, "interface 9"),
    ("no interface", with_task(interface=0), NvError.BAD_PARAMETER, "interface 0"),
    ("an address without memory", with_address(mem_id=77), NvError.BAD_PARAMETER, "memory 77"),
    ("input and output in one memory",
     with_fields(4, flags=MemoryFlags.ALLOC | MemoryFlags.INPUT | MemoryFlags.OUTPUT),
     NvError.BAD_PARAMETER, "bind ids"),
)  # fmt: skip


@pytest.mark.requirement("D-9", "DX-9", "DX-10")
@pytest.mark.parametrize(
    ("loadable", "status", "text"),
    [item[1:] for item in HOSTILE],
    ids=[item[0] for item in HOSTILE],
)
def test_a_hostile_loadable_is_refused_and_the_device_goes_on(
    loadable: Loadable, status: NvError, text: str
) -> None:
    driver = driver_of_one()
    with create_runtime(LocalPort(driver)) as runtime:
        with pytest.raises(NvdlaError, match=text) as caught:
            run(runtime, loadable)
        assert caught.value.status is status
    with create_runtime(LocalPort(driver)) as runtime:
        assert run(runtime, pooling()) == bytes(range(64))


class DeafMachine:
    """A machine whose interrupt line is cut."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_cut = True
        self.gives_up = False

    def read(self, address: int, /) -> int:
        return self._machine.read(address)

    def write(self, address: int, value: int, /) -> None:
        self._machine.write(address, value)

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        if self.is_cut:
            time.sleep(timeout_s)
            if self.gives_up:  # an engine that looked at the clock itself
                raise NvdlaError(NvError.TIMEOUT, "an engine still worked")
            return False
        return self._machine.wait_for_interrupt(timeout_s)


@pytest.mark.requirement("D-30", "D-41")
@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.slow
def test_a_task_that_cannot_finish_ends_at_its_timeout_and_the_device_goes_on(
    gives_up: bool,
) -> None:
    buses: list[DeafMachine] = []

    def connect(machine: Machine) -> tuple[RegisterBus, DmaMemory]:
        buses.append(DeafMachine(machine))
        return buses[0], machine.memory

    driver = driver_of_one(connect, ROOMY_TIMEOUT_S)
    buses[0].gives_up = gives_up
    with create_runtime(LocalPort(driver)) as runtime:
        begin = time.monotonic()
        with pytest.raises(NvdlaError, match=r"0 of 1 operations.*State of the hardware") as caught:
            run(runtime, pooling())
        assert caught.value.status is NvError.TIMEOUT
        assert time.monotonic() - begin >= ROOMY_TIMEOUT_S
    buses[0].is_cut = False
    with create_runtime(LocalPort(driver)) as runtime:
        assert run(runtime, pooling()) == bytes(range(64))
