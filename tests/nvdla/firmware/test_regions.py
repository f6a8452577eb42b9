"""Regions of interest on the machine, against plain loops over the picture's bytes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import MemorySpace
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL, NV_SMALL, Configuration, Machine
from smelt.nvdla.loadable import (
    SURFACE_STRIDE_BYTES,
    DataCube,
    OperationType,
    PdpOperation,
    PdpSurface,
    Roi,
)
from tests.nvdla.firmware._hardware import FakeMemory
from tests.nvdla.firmware._tasks import DATA, PLACES, SURFACES, TaskBuilder

MEMORY_BYTES: Final = 1 << 20
SIDE: Final = 16
"""Lines and columns of the picture."""
TARGETS: Final = 0x8000
"""Where the first region's result lies behind the picture's start; the others follow."""


class Region(NamedTuple):
    """Where a region begins, and how large it is."""

    left: int
    top: int
    width: int
    height: int


class Window(NamedTuple):
    """A window of maximum pooling, which moves by one."""

    width: int
    height: int


@st.composite
def regions(draw: st.DrawFn) -> Region:
    width, height = draw(st.integers(3, 8)), draw(st.integers(3, 8))
    left, top = draw(st.integers(0, SIDE - width)), draw(st.integers(0, SIDE - height))
    return Region(left, top, width, height)


windows = st.builds(Window, st.integers(1, 3), st.integers(1, 3))


def pool_region(picture: bytes, atom: int, region: Region, window: Window) -> bytes:
    """The largest number of each channel under each window, line by line."""
    result = bytearray()
    for y in range(region.height - window.height + 1):
        for x in range(region.width - window.width + 1):
            for lane in range(atom):
                seen = [
                    picture[((region.top + y + j) * SIDE + region.left + x + i) * atom + lane]
                    for j in range(window.height)
                    for i in range(window.width)
                ]
                result.append(max(seen))
    return bytes(result)


def describe(atom: int, region: Region, window: Window, number: int) -> PdpSurface:
    line = SIDE * atom
    source = DataCube(
        address=-1, width=region.width, height=region.height, channel=atom,
        line_stride=line, surf_stride=line * SIDE,
    )  # fmt: skip
    width, height = region.width - window.width + 1, region.height - window.height + 1
    target = replace(
        source, address=DATA, offset=TARGETS + number * 0x4000, width=width, height=height,
        line_stride=width * atom, surf_stride=width * height * atom,
    )  # fmt: skip
    return PdpSurface(src_data=source, dst_data=target)


@given(
    st.sampled_from((NV_FULL, NV_SMALL)),
    st.lists(regions(), min_size=1, max_size=4),
    windows,
    st.integers(0, 1 << 32).map(Random),
)
def test_each_dynamic_region_is_cut_from_the_picture_and_pooled_by_itself(
    configuration: Configuration, places: list[Region], window: Window, random: Random
) -> None:
    atom = configuration.atom_bytes
    picture = bytes(random.randrange(128) for _ in range(SIDE * SIDE * atom))
    task = TaskBuilder(num_rois=len(places))
    task.add(OperationType.PDP)
    operation = PdpOperation(
        split_num=1, pool_mode=1, pool_width=window.width - 1, pool_height=window.height - 1,
        stride_x=1, stride_y=1,
    )  # fmt: skip
    surfaces = [describe(atom, place, window, at) for at, place in enumerate(places)]
    task.contents[0] = operation, surfaces[0]
    memory = FakeMemory(MEMORY_BYTES)
    network = replace(task.network(), dynamic_roi=1, input_layer=0, surface_index=DATA)
    addresses = task.write(memory, network=network)
    for at, surface in enumerate(surfaces):
        start = PLACES[SURFACES] + at * SURFACE_STRIDE_BYTES
        memory.write(MemorySpace.DRAM, start, surface.to_bytes())
    task.write_rois(memory, [Roi(left=place.left * atom, top=place.top) for place in places])
    memory.write(MemorySpace.DRAM, PLACES[DATA], picture)
    machine = Machine(configuration, MEMORY_BYTES)
    machine.memory.write(MemorySpace.DRAM, 0, memory.data)
    EngineScheduler(machine, machine.memory, configuration).execute_task(addresses, timeout_s=5)
    for at, place in enumerate(places):
        expected = pool_region(picture, atom, place, window)
        start = PLACES[DATA] + TARGETS + at * 0x4000
        assert machine.memory.read(MemorySpace.DRAM, start, len(expected)) == expected
