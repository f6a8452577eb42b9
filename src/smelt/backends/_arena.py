"""Offsets in the arena: buffers whose lives do not meet share bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT_BYTES: Final = 128
"""A line of a GPU's caches, and two of a processor's: rows of whole lines then touch no more of
them than they have."""
_ATTEMPTS: Final = 100
_MAX_INTERFERENCES: Final = 2_000_000
"""Pairs of buffers that live at once."""
_MAX_INTERFERENCE_VISITS: Final = 10_000_000
"""Neighbours that all attempts together look at: those of a very large network have fewer."""


@dataclass(frozen=True, slots=True)
class LiveRange:
    """A buffer that is written first in a step and read last in another, both counted from 0."""

    size_bytes: int
    first_step: int
    last_step: int


def assign_offsets(
    live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]
) -> tuple[list[int], int]:
    """An offset for each buffer, and the arena's size, both in bytes.

    Args:
        live_ranges: the buffers.
        complete_before_step: for each step, how many of the earliest steps are surely complete
            when it starts; never fewer than for the step before. Two buffers may share bytes only
            if one's last use is complete when the other's first write starts.

    Largest first, each at the lowest place where it meets no living neighbour (greedy by size:
    Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020). While
    that takes more than the lower bound, the buffer that sticks out is placed before its
    neighbours, and all are placed anew. Where very many live at once, each takes the smallest gap
    that fits when its life begins: neighbours of each other would be too many to look at.
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
    best, least = _assign_first_fit(sizes, interferences, order)
    offsets, size = best, least
    for _ in range(
        min(_ATTEMPTS, _MAX_INTERFERENCE_VISITS // max(sum(map(len, interferences)), 1))
    ):
        if least <= bound:
            break
        highest = next(i for i in order if offsets[i] + sizes[i] == size)
        order.remove(highest)
        positions = {index: position for position, index in enumerate(order)}
        order.insert(min(positions[i] for i in interferences[highest]), highest)
        offsets, size = _assign_first_fit(sizes, interferences, order)
        if size < least:
            best, least = offsets, size
    return best, least


def _assign_first_fit(
    sizes: Sequence[int], interferences: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    """Place buffers in order, each as low as those before it allow; return the end of all, too."""
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
    """The largest sum of sizes of which none may share bytes, in bytes: no arena can be smaller.

    Alive in a step is what the step or an earlier one writes, and what is read in a step that may
    still be running.
    """
    change = [0] * (len(complete_before_step) + 1)
    for live_range in live_ranges:
        size = _align(live_range.size_bytes)
        change[live_range.first_step] += size
        over = bisect_right(complete_before_step, live_range.last_step)
        change[over] -= size
    total = largest = 0
    for delta in change:
        total += delta
        largest = max(largest, total)
    return largest


def _assign_by_first_step(
    live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]
) -> tuple[list[int], int]:
    """Place buffers as their lives begin, each in the smallest gap that is left and fits."""
    offsets, end = [0] * len(live_ranges), 0
    alive: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    """Size and start of each, sorted."""
    for index in sorted(range(len(live_ranges)), key=lambda i: live_ranges[i].first_step):
        while alive and alive[0][0] < complete_before_step[live_ranges[index].first_step]:
            _, over = heappop(alive)
            insort(gaps, (_align(live_ranges[over].size_bytes), offsets[over]))
        size = _align(live_ranges[index].size_bytes)
        fitting = bisect_left(gaps, (size, 0))
        if fitting < len(gaps):
            gap_bytes, offsets[index] = gaps.pop(fitting)
            if gap_bytes > size:
                insort(gaps, (gap_bytes - size, offsets[index] + size))
        else:
            offsets[index], end = end, end + size
        heappush(alive, (live_ranges[index].last_step, index))
    return offsets, end


def _interferences(
    live_ranges: Sequence[LiveRange], complete_before_step: Sequence[int]
) -> list[list[int]] | None:
    """For each buffer the others that must not share bytes with it; None if they are too many."""
    interferences: list[list[int]] = [[] for _ in live_ranges]
    count = 0
    alive: list[tuple[int, int]] = []
    for index in sorted(range(len(live_ranges)), key=lambda i: live_ranges[i].first_step):
        while alive and alive[0][0] < complete_before_step[live_ranges[index].first_step]:
            heappop(alive)  # over for all later ones, too
        count += len(alive)
        if count > _MAX_INTERFERENCES:
            return None
        interferences[index] += [other for _, other in alive]
        for _, other in alive:
            interferences[other].append(index)
        heappush(alive, (live_ranges[index].last_step, index))
    return interferences


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
