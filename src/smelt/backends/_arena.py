"""Assign arena offsets so that buffers with disjoint live ranges share bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT_BYTES: Final = 128
"""Alignment of every buffer in bytes: one cache line of a GPU, two of a CPU. Rows that are a
multiple of it then span no additional cache line."""
_ATTEMPTS: Final = 100
"""Maximum number of orders that first-fit placement tries after the greedy one."""
_MAX_INTERFERENCES: Final = 2_000_000
"""Maximum number of pairs of simultaneously live buffers for which the search by interference
runs."""
_MAX_INTERFERENCE_VISITS: Final = 10_000_000
"""Maximum number of neighbours that all attempts together visit: a very large network gets fewer
attempts."""


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Size of a buffer, and the first and last step that use it, counted from 0."""

    size_bytes: int
    first_step: int
    last_step: int


def assign_offsets(
    live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]
) -> tuple[list[int], int]:
    """Return an offset for each buffer and the size of the arena, both in bytes.

    Buffers are placed by decreasing size, each at the lowest offset at which it overlaps no live
    neighbour (greedy by size: Pisarchyk and Lee, "Efficient memory management for deep neural net
    inference", 2020). While the result exceeds the lower bound, the buffer that reaches the end of
    the arena is moved ahead of its neighbours in the order, and all buffers are placed again. If
    more than ``_MAX_INTERFERENCES`` pairs are live at once, each buffer takes the smallest gap that
    fits when its live range begins, because visiting all neighbours would take too long.

    Args:
        live_ranges: the buffers.
        complete_before_step: for each step, how many of the earliest steps are guaranteed to be
            complete when it starts; the values never decrease. Two buffers may share bytes only if
            the last use of one is complete when the first write of the other starts.
    """
    interferences = _interferences(live_ranges, complete_before_step)
    if interferences is None:
        return _assign_by_first_step(live_ranges, complete_before_step)
    sizes = [_align(live_range.size_bytes) for live_range in live_ranges]
    order = sorted(
        range(len(live_ranges)),
        key=lambda i: (-live_ranges[i].size_bytes, live_ranges[i].first_step),
    )
    bound = lower_bound(live_ranges, complete_before_step)
    best, best_size = _assign_first_fit(sizes, interferences, order)
    offsets, size = best, best_size
    for _ in range(
        min(_ATTEMPTS, _MAX_INTERFERENCE_VISITS // max(sum(map(len, interferences)), 1))
    ):
        if best_size <= bound:
            break
        highest = next(i for i in order if offsets[i] + sizes[i] == size)
        order.remove(highest)
        positions = {index: position for position, index in enumerate(order)}
        order.insert(min(positions[i] for i in interferences[highest]), highest)
        offsets, size = _assign_first_fit(sizes, interferences, order)
        if size < best_size:
            best, best_size = offsets, size
    return best, best_size


def _assign_first_fit(
    sizes: Sequence[int], interferences: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    """Place buffers in order, each at its lowest free offset; also return the end of the last."""
    offsets = [-1] * len(sizes)
    for index in order:
        position = 0
        for start, size in sorted(
            (offsets[i], sizes[i]) for i in interferences[index] if offsets[i] >= 0
        ):
            if position + sizes[index] <= start:
                break
            position = max(position, start + size)
        offsets[index] = position
    return offsets, max((a + b for a, b in zip(offsets, sizes, strict=True)), default=0)


def lower_bound(live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]) -> int:
    """Return the largest sum of sizes that are live at once, in bytes: no arena can be smaller.

    A buffer is live in a step if this step or an earlier one writes the buffer, and if a step that
    may still be running reads it.
    """
    change = [0] * (len(complete_before_step) + 1)
    for live_range in live_ranges:
        size = _align(live_range.size_bytes)
        change[live_range.first_step] += size
        end_step = bisect_right(complete_before_step, live_range.last_step)
        change[end_step] -= size
    total = largest = 0
    for delta in change:
        total += delta
        largest = max(largest, total)
    return largest


def _assign_by_first_step(
    live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]
) -> tuple[list[int], int]:
    """Place buffers in the order of their first steps, each in the smallest free gap that fits."""
    offsets, end = [0] * len(live_ranges), 0
    alive: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    """Free gaps as (size, start) in bytes, sorted."""
    for index in sorted(range(len(live_ranges)), key=lambda i: live_ranges[i].first_step):
        while alive and alive[0][0] < complete_before_step[live_ranges[index].first_step]:
            _, dead = heappop(alive)
            insort(gaps, (_align(live_ranges[dead].size_bytes), offsets[dead]))
        size = _align(live_ranges[index].size_bytes)
        gap_index = bisect_left(gaps, (size, 0))
        if gap_index < len(gaps):
            gap_bytes, offsets[index] = gaps.pop(gap_index)
            if gap_bytes > size:
                insort(gaps, (gap_bytes - size, offsets[index] + size))
        else:
            offsets[index], end = end, end + size
        heappush(alive, (live_ranges[index].last_step, index))
    return offsets, end


def _interferences(
    live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]
) -> list[list[int]] | None:
    """Return, for each buffer, those it must not share bytes with; None if there are too many."""
    interferences: list[list[int]] = [[] for _ in live_ranges]
    count = 0
    alive: list[tuple[int, int]] = []
    for index in sorted(range(len(live_ranges)), key=lambda i: live_ranges[i].first_step):
        while alive and alive[0][0] < complete_before_step[live_ranges[index].first_step]:
            heappop(alive)  # dead for all later buffers, too
        count += len(alive)
        if count > _MAX_INTERFERENCES:
            return None
        interferences[index] += [other for _, other in alive]
        for _, other in alive:
            interferences[other].append(index)
        heappush(alive, (live_ranges[index].last_step, index))
    return interferences


def _align(size_bytes: int) -> int:
    """Round a size up to a multiple of ``ALIGNMENT_BYTES``."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
