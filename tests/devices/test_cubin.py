"""What cubins tell, and what a multiprocessor has room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.devices.cuda import SM_RESOURCES, KernelResources, check_is_whole, resources_of
from smelt.errors import EngineFormatError
from tests.support.cubins import Kernel, make_cubin

CUBIN = make_cubin(Kernel("first", 40, 512), Kernel("second", 255, 3072, 96, 256), reserves=True)


def test_each_kernel_of_a_cubin_tells_what_it_takes() -> None:
    assert resources_of(CUBIN, "second") == KernelResources(255, 3072 - 1024, 96, 256)
    assert resources_of(CUBIN, "first") == KernelResources(40, 0, 0, 128)


def test_shared_memory_of_older_gpus_is_the_kernels_alone() -> None:
    assert resources_of(make_cubin(Kernel("k", 8, 1024)), "k").static_shared_bytes == 1024


def test_a_kernel_that_is_not_there_is_told() -> None:
    with pytest.raises(EngineFormatError, match="no kernel 'third'"):
        resources_of(CUBIN, "third")
    with pytest.raises(EngineFormatError, match="not a valid cubin"):
        resources_of(CUBIN, "\ud800")


_SECTIONS_END = len(CUBIN) - 2 * 56


@pytest.mark.parametrize("length", range(0, _SECTIONS_END, 7))
def test_a_cubin_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(EngineFormatError):
        resources_of(CUBIN[:length], "second")


@pytest.mark.parametrize("length", range(0, len(CUBIN), 7))
def test_the_driver_is_given_no_cubin_that_was_cut(length: int) -> None:
    check_is_whole(CUBIN)
    with pytest.raises(EngineFormatError):
        check_is_whole(CUBIN[:length])


@pytest.mark.parametrize(
    ("place", "value", "what"),
    [
        (_SECTIONS_END + 8, len(CUBIN), "a segment extends beyond the end of the code"),
        (_SECTIONS_END + 32, 1 << 63, "a segment extends beyond the end of the code"),
        (_SECTIONS_END + 56 + 32, len(CUBIN) + 1, "a segment extends beyond the end of the code"),
        (32, len(CUBIN) - 8, "not a valid cubin"),  # the table of segments
        (54, int.from_bytes(CUBIN[54:62], "little") + 1, "its program headers have"),
    ],
)
def test_the_driver_is_given_no_cubin_whose_segments_lie_beyond_its_end(
    place: int, value: int, what: str
) -> None:
    data = bytearray(CUBIN)
    data[place : place + 8] = value.to_bytes(8, "little")
    with pytest.raises(EngineFormatError, match=what):
        check_is_whole(bytes(data))


@given(st.lists(st.tuples(st.integers(0, len(CUBIN) - 1), st.integers(0, 255)), max_size=6))
def test_a_damaged_cubin_is_refused_or_read_and_nothing_else(
    changes: list[tuple[int, int]],
) -> None:
    data = bytearray(CUBIN)
    for place, value in changes:
        data[place] = value
    try:
        found = resources_of(bytes(data), "second")
    except EngineFormatError:
        return
    assert min(found.registers, found.static_shared_bytes, found.local_bytes) >= 0


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared_bytes", "wanted"),
    [
        (90, 128, 32, 0, (16, "threads")),
        (90, 128, 255, 0, (2, "registers")),
        (90, 128, 168, 0, (3, "registers")),
        (90, 384, 168, 0, (1, "registers")),
        (90, 128, 32, 232448, (1, "shared memory")),
        (90, 128, 32, 99 << 10, (2, "shared memory")),
        (90, 32, 16, 0, (32, "blocks")),
        (75, 256, 64, 64 << 10, (1, "shared memory")),
        (75, 32, 16, 0, (16, "blocks")),
        (86, 1024, 64, 0, (1, "threads")),
        (86, 1024, 96, 0, (0, "registers")),
    ],
)
def test_what_is_scarcest_decides_how_many_blocks_a_multiprocessor_holds(
    capability: int, threads: int, registers: int, shared_bytes: int, wanted: tuple[int, str]
) -> None:
    assert SM_RESOURCES[capability].resident_blocks(threads, registers, shared_bytes) == wanted
