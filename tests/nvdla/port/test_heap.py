"""Pages are handed out once, and joined when given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.port import PageHeap

ROOM = 1 << 20


@given(st.lists(st.tuples(st.booleans(), st.integers(1, ROOM // 3))))
def test_allocations_never_overlap_and_everything_comes_back(
    steps: list[tuple[bool, int]],
) -> None:
    heap = PageHeap(0x1234, ROOM)
    whole = heap.free_bytes
    used: dict[int, int] = {}
    for is_release, size in steps:
        if is_release and used:
            address = sorted(used)[size % len(used)]
            heap.release(address)
            del used[address]
            continue
        try:
            address = heap.allocate(size)
        except NvdlaError:
            continue
        assert address % 4096 == 0
        assert address >= 0x1234
        assert address + size <= 0x1234 + ROOM
        for start, taken in used.items():
            assert address + size <= start or start + taken <= address
        used[address] = size
    for address in used:
        heap.release(address)
    assert heap.free_bytes == whole
    assert heap.allocate(whole) == 0x2000


def test_a_full_heap_says_so() -> None:
    heap = PageHeap(0, ROOM, "SRAM")
    with pytest.raises(NvdlaError, match="SRAM") as caught:
        heap.allocate(ROOM + 1)
    assert caught.value.status is NvError.INSUFFICIENT_MEMORY


def test_what_is_not_in_use_cannot_be_released() -> None:
    heap = PageHeap(0, ROOM)
    with pytest.raises(NvdlaError) as caught:
        heap.release(4096)
    assert caught.value.status is NvError.BAD_PARAMETER
