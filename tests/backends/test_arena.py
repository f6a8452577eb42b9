"""Offsets in the arena: never two living buffers on one byte, and never much more than needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.backends import _arena
from smelt.backends._arena import ALIGNMENT_BYTES, LiveRange, assign_offsets, lower_bound

if TYPE_CHECKING:
    from collections.abc import Sequence


def surely_over(a: LiveRange, b: LiveRange, complete_before_step: Sequence[int]) -> bool:
    """Whether every use of ``a`` is complete when ``b`` is first written."""
    return a.last_step < complete_before_step[b.first_step]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[LiveRange], list[int]]:
    """Buffers of a list of steps, of which some start before their predecessors end."""
    count = draw(st.integers(1, 12))
    complete_before_step = [draw(st.integers(max(0, step - 3), step)) for step in range(count)]
    for step in range(1, count):  # what was complete once stays complete
        complete_before_step[step] = max(complete_before_step[step], complete_before_step[step - 1])
    live_ranges: list[LiveRange] = []
    for _ in range(draw(st.integers(0, 15))):
        first = draw(st.integers(0, count - 1))
        last = draw(st.integers(first, count - 1))
        live_ranges.append(LiveRange(draw(st.integers(0, 500)), first, last))
    return live_ranges, complete_before_step


@given(programs(), st.sampled_from([0, 200_000]))
@settings(max_examples=200, deadline=None)
def test_buffers_share_bytes_only_when_one_is_surely_over(
    program: tuple[list[LiveRange], list[int]], most: int
) -> None:
    live_ranges, complete_before_step = program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_arena, "_MAX_INTERFERENCES", most)
        offsets, arena = assign_offsets(live_ranges, complete_before_step)
    for i, (a, start) in enumerate(zip(live_ranges, offsets, strict=True)):
        assert start % ALIGNMENT_BYTES == 0
        assert start + a.size_bytes <= arena
        for b, other in zip(live_ranges[:i], offsets, strict=False):
            apart = start + a.size_bytes <= other or other + b.size_bytes <= start
            assert (
                apart
                or surely_over(a, b, complete_before_step)
                or surely_over(b, a, complete_before_step)
            )


@given(programs())
@settings(max_examples=100, deadline=None)
def test_no_arena_is_smaller_than_the_lower_bound(
    program: tuple[list[LiveRange], list[int]],
) -> None:
    live_ranges, complete_before_step = program
    _, arena = assign_offsets(live_ranges, complete_before_step)
    assert arena >= lower_bound(live_ranges, complete_before_step)


@given(programs())
@settings(max_examples=100, deadline=None)
def test_only_attempts_are_fewer_where_there_are_very_many_neighbours(
    program: tuple[list[LiveRange], list[int]],
) -> None:
    live_ranges, complete_before_step = program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_arena, "_MAX_INTERFERENCE_VISITS", 0)
        offsets, arena = assign_offsets(live_ranges, complete_before_step)
    for i, (a, start) in enumerate(zip(live_ranges, offsets, strict=True)):
        assert start + a.size_bytes <= arena
        for b, other in zip(live_ranges[:i], offsets, strict=False):
            apart = start + a.size_bytes <= other or other + b.size_bytes <= start
            assert (
                apart
                or surely_over(a, b, complete_before_step)
                or surely_over(b, a, complete_before_step)
            )


def test_buffers_are_compared_only_with_those_that_live_beside_them() -> None:
    asked: list[int] = []

    class Started(list[int]):
        def __getitem__(self, step: int) -> int:  # type: ignore[override]
            asked.append(step)
            return super().__getitem__(step)

    count = 2000
    live_ranges = [LiveRange(1000, step, step + 1) for step in range(count)]
    assert assign_offsets(live_ranges, Started(range(count + 1)))[1] == 2 * 1024
    assert len(asked) < 20 * count


def test_a_chain_takes_two_buffers() -> None:
    live_ranges = [LiveRange(1000, step, step + 1) for step in range(8)]
    _, arena = assign_offsets(live_ranges, list(range(9)))
    assert arena == 2 * 1024 == lower_bound(live_ranges, list(range(9)))


def test_a_step_that_does_not_wait_shares_nothing_with_the_one_before() -> None:
    live_ranges = [LiveRange(ALIGNMENT_BYTES, 0, 0), LiveRange(ALIGNMENT_BYTES, 1, 1)]
    assert assign_offsets(live_ranges, [0, 1])[1] == ALIGNMENT_BYTES
    assert assign_offsets(live_ranges, [0, 0])[1] == 2 * ALIGNMENT_BYTES


def test_the_bound_counts_what_a_step_that_does_not_wait_may_meet() -> None:
    live_ranges = [LiveRange(ALIGNMENT_BYTES, 0, 0), LiveRange(ALIGNMENT_BYTES, 1, 1)]
    assert lower_bound(live_ranges, [0, 1]) == ALIGNMENT_BYTES
    assert lower_bound(live_ranges, [0, 0]) == 2 * ALIGNMENT_BYTES


def test_residual_blocks_take_no_more_than_what_is_alive_at_once() -> None:
    """Each block's input lives until its sum; by size alone they would take a third more."""
    live_ranges: list[LiveRange] = []
    for block in range(4):
        first = 6 * block
        live_ranges += [LiveRange(3200, first, first + 6), LiveRange(860, first + 1, first + 5)]
        live_ranges += [LiveRange(800, first + 3, first + 6), LiveRange(3600, first + 3, first + 5)]
    complete_before_step = list(range(26))
    assert assign_offsets(live_ranges, complete_before_step)[1] <= 1.02 * lower_bound(
        live_ranges, complete_before_step
    )


def test_nothing_needs_no_arena() -> None:
    assert assign_offsets([], []) == ([], 0)
    assert lower_bound([], []) == 0


def test_buffers_that_all_live_at_once_lie_one_behind_the_other_however_many() -> None:
    count = 50_000
    live_ranges = [LiveRange(ALIGNMENT_BYTES, i, count + i) for i in range(count)]
    offsets, arena = assign_offsets(live_ranges, list(range(2 * count)))
    assert arena == count * ALIGNMENT_BYTES == lower_bound(live_ranges, list(range(2 * count)))
    assert len({*offsets}) == count
