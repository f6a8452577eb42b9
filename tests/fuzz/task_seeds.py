"""Descriptors in memory to start from, as firmware meets them, and how they are run.

An input is a byte for the hardware, one for the layout, and the six lists of a task, each after its
length. The scheduler gets them without a loadable before it that could have refused them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.hardware import NV_FULL, NV_SMALL
from smelt.nvdla.loadable import (
    OperationEvent,
    OperationType,
    Roi,
    RoiArray,
)
from smelt.nvdla.port import MachineDriver, NvDlaHeap, PhysicalRegion, PhysicalTask
from tests.fuzz.mutators import INTEGERS, mutate_bytes
from tests.nvdla.firmware._hardware import FakeMemory
from tests.nvdla.firmware._tasks import GRAPH, NETWORK, PLACES, ROIS, TaskBuilder

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

_MEMORY_BYTES: Final = 1 << 20
_HARDWARE: Final = (NV_FULL, NV_SMALL)
_LIST_BYTES: Final = (40, 120 * 5, 700 * 5, 60 * 5, 2200, 40)
"""Of each list that goes into an input: what five operations need."""
_ROOM_BYTES: Final = 1 << 15
"""Of each entry of the address list."""
_PAGE_BYTES: Final = 4096
_FOREIGN: Final = 0xA5
"""What memory of others holds."""
_SECONDS: Final = 0.05


def task_seeds() -> Iterator[bytes]:
    """One operation of each engine, fused ones, edges of every kind, regions; right and wrong."""
    for op_type in OperationType:
        task = TaskBuilder()
        task.add(op_type)
        for hardware in range(len(_HARDWARE)):
            yield _input(task, hardware)
            yield _input(task, hardware, layout=1)
    for task in (*_sound_tasks(), *_wrong_tasks()):
        yield _input(task)
    pair = _pair()
    network = pair.network()
    for changed in (
        replace(network, num_addresses=9),
        replace(network, num_operations=1 << 15, num_rois=9),
        replace(network, dependency_graph_index=100),
        replace(network, op_head=(-1, -1, -1, 1, -1, -1)),
        replace(network, op_head=(-1, -1, -1, 7, 0, -1)),
        replace(network, dynamic_roi=1, num_rois=3),
        replace(network, dynamic_roi=1, num_rois=1),
        replace(network, num_rois=0),
        replace(network, stat_list_index=6),
    ):
        yield _input(pair, network=changed.to_bytes())


def _pair() -> TaskBuilder:
    task = TaskBuilder()
    for _ in range(2):
        task.add(OperationType.PDP)
    task.chain()
    return task


def _sound_tasks() -> Iterator[TaskBuilder]:
    fused = TaskBuilder(has_statistics=True)
    fused.fuse(fused.add(OperationType.CONV), fused.add(OperationType.SDP))
    fused.connect(0, fused.add(OperationType.CDP, lut_index=1), OperationEvent.CDMA_DATA_DONE)
    yield fused
    regions = _pair()
    regions.num_rois = 2
    yield regions
    streamed = TaskBuilder()
    streamed.fuse(streamed.add(OperationType.SDP, lut_index=0), streamed.add(OperationType.PDP))
    yield streamed


def _wrong_tasks() -> Iterator[TaskBuilder]:
    looped = TaskBuilder()
    looped.connect(looped.add(OperationType.PDP), looped.add(OperationType.CDP), 1)
    looped.connect(1, 0, OperationEvent.COMPLETED)
    yield looped
    for target, event in ((0, 1), (1, OperationEvent.CDMA_DATA_DONE)):
        task = _pair()
        task.connect(0, target, event)
        yield task
    unfed = TaskBuilder()
    unfed.fuse(unfed.add(OperationType.PDP), unfed.add(OperationType.CDP))
    yield unfed
    comes_back = _pair()
    comes_back.connect(1, 0, OperationEvent.NONE)
    yield comes_back
    apart = TaskBuilder()
    for _ in range(2):
        apart.add(OperationType.PDP)
    yield apart


def _input(
    task: TaskBuilder, hardware: int = 0, layout: int = 0, network: bytes | None = None
) -> bytes:
    memory = FakeMemory(_MEMORY_BYTES)
    task.write(memory)
    task.write_rois(memory, [Roi()] * 2)
    lists = [
        bytes(memory.data[place : place + size])
        for place, size in zip(PLACES, _LIST_BYTES, strict=False)
    ]
    lists[ROIS] = lists[ROIS][: RoiArray.size_bytes() + 2 * Roi.size_bytes()]
    if network is not None:
        lists[NETWORK] = network
    return _joined(bytes((hardware, layout)), lists)


def _joined(head: bytes, lists: Sequence[bytes]) -> bytes:
    return head + b"".join(len(item).to_bytes(2, "little") + item for item in lists)


def _parts(data: bytes) -> tuple[bytes, list[bytes]]:
    head, lists, at = data[:2].ljust(2, b"\0"), list[bytes](), 2
    for _ in _LIST_BYTES:
        size = int.from_bytes(data[at : at + 2], "little")
        lists.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return head, lists


def run_task(data: bytes) -> None:
    """Run a task beside memory of others, which must stay; a sound task must run after it."""
    head, lists = _parts(data)
    configuration = _HARDWARE[head[0] % len(_HARDWARE)]
    driver = MachineDriver(configuration, dram_bytes=_MEMORY_BYTES, timeout_s=_SECONDS)
    own: list[PhysicalRegion] = []
    foreign: list[PhysicalRegion] = []
    for _ in PLACES:
        own.append(driver.allocate(0, _ROOM_BYTES, NvDlaHeap.SYSTEM))
        foreign.append(driver.allocate(0, _PAGE_BYTES, NvDlaHeap.SYSTEM))
        foreign[-1].data[:] = _FOREIGN
    for region, content in zip(own, lists, strict=False):
        region.data[: len(content)] = np.frombuffer(content, np.uint8)[:_ROOM_BYTES]
    version = (0, 12, 0) if head[1] % 2 == 0 else (0, 11, 0)
    task = PhysicalTask(0, tuple(region.at(0) for region in own), version)
    try:
        driver.execute(0, task)
    except NvdlaError as error:
        if error.status is NvError.SUCCESS:
            raise AssertionError("a refusal says that it is a success") from error
        _write_empty_task(own[NETWORK])
        driver.execute(0, task)
        raise
    finally:
        if any((region.data != _FOREIGN).any() for region in foreign):
            raise AssertionError("a task changed memory that is not its own")


def _write_empty_task(network: PhysicalRegion) -> None:
    empty = replace(TaskBuilder().network(), op_head=(-1,) * 6, num_operations=0, num_luts=0)
    content = empty.to_bytes()
    network.data[: len(content)] = np.frombuffer(content, np.uint8)


def mutate_task(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change numbers of one list, most often of the graph; or take a list of another input."""
    head, lists = _parts(data)
    which = chance.choice((NETWORK, GRAPH, GRAPH, *range(len(lists))))
    kind = chance.random()
    if kind < 0.05:
        return mutate_bytes(data, chance, corpus)
    if kind < 0.15 and corpus:
        lists[which] = _parts(chance.choice(corpus))[1][which]
    elif kind < 0.2:
        head = chance.randbytes(2)
    else:
        for _ in range(chance.choice((1, 1, 2, 4))):
            lists[which] = _changed(lists[which], chance)
    return _joined(head, lists)


def _changed(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return chance.randbytes(4)
    changed = bytearray(content)
    width = chance.choice((1, 2, 2, 4))
    # Most of a list is room that the task leaves: what it says counts as much as all of that.
    said = [place for place, byte in enumerate(content) if byte]
    at = chance.choice(chance.choice((said or [0], range(len(content))))) // width * width
    near = int.from_bytes(changed[at : at + width], "little") + chance.choice((-1, 1))
    small = chance.choice((0, 1, 2, 3, 4, 5, 6, -1))
    number = chance.choice((near, small, small, chance.choice(INTEGERS), chance.getrandbits(32)))
    changed[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
    return bytes(changed[: len(content)])
