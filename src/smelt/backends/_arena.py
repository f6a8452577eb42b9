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
_MOST_NEIGHBOURS: Final = 2_000_000
"""Pairs of buffers that live at once."""
_MOST_LOOKED_AT: Final = 10_000_000
"""Neighbours that all attempts together look at: those of a very large network have fewer."""


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer that is written first in a step and read last in another, both counted from 0."""

    size_bytes: int
    first_step: int
    last_step: int


def assign_offsets(lives: Sequence[Life], started: Sequence[int]) -> tuple[list[int], int]:
    """An offset for each buffer, and the arena's size, both in bytes.

    Args:
        lives: the buffers.
        started: for each step, how many of the earliest steps are surely complete when it
            starts; never fewer than for the step before. Two buffers may share bytes only if one's
            last use is complete when the other's first write starts.

    Largest first, each at the lowest place where it meets no living neighbour (greedy by size:
    Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020). While
    that takes more than the lower bound, the buffer that sticks out is placed before its
    neighbours, and all are placed anew. Where very many live at once, each takes the smallest gap
    that fits when its life begins: neighbours of each other would be too many to look at.
    """
    met = _neighbours(lives, started)
    if met is None:
        return _place_in_time(lives, started)
    sizes = [_align(life.size_bytes) for life in lives]
    order = sorted(range(len(lives)), key=lambda i: (-lives[i].size_bytes, lives[i].first_step))
    bound = lower_bound(lives, started)
    best, least = _place(sizes, met, order)
    offsets, size = best, least
    for _ in range(min(_ATTEMPTS, _MOST_LOOKED_AT // max(sum(map(len, met)), 1))):
        if least <= bound:
            break
        highest = next(i for i in order if offsets[i] + sizes[i] == size)
        order.remove(highest)
        places = {index: place for place, index in enumerate(order)}
        order.insert(min(places[i] for i in met[highest]), highest)
        offsets, size = _place(sizes, met, order)
        if size < least:
            best, least = offsets, size
    return best, least


def _place(
    sizes: Sequence[int], met: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    """Place buffers in order, each as low as those before it allow; return the end of all, too."""
    offsets = [-1] * len(sizes)
    for index in order:
        place = 0
        for start, size in sorted((offsets[i], sizes[i]) for i in met[index] if offsets[i] >= 0):
            if place + sizes[index] <= start:
                break
            place = max(place, start + size)
        offsets[index] = place
    return offsets, max((a + b for a, b in zip(offsets, sizes, strict=True)), default=0)


def lower_bound(lives: Sequence[Life], started: Sequence[int]) -> int:
    """The largest sum of sizes of which none may share bytes, in bytes: no arena can be smaller.

    Alive in a step is what the step or an earlier one writes, and what is read in a step that may
    still be running.
    """
    change = [0] * (len(started) + 1)
    for life in lives:
        size = _align(life.size_bytes)
        change[life.first_step] += size
        over = bisect_right(started, life.last_step)
        change[over] -= size
    total = largest = 0
    for delta in change:
        total += delta
        largest = max(largest, total)
    return largest


def _place_in_time(lives: Sequence[Life], started: Sequence[int]) -> tuple[list[int], int]:
    """Place buffers as their lives begin, each in the smallest gap that is left and fits."""
    offsets, end = [0] * len(lives), 0
    alive: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    """Size and start of each, sorted."""
    for index in sorted(range(len(lives)), key=lambda i: lives[i].first_step):
        while alive and alive[0][0] < started[lives[index].first_step]:
            _, over = heappop(alive)
            insort(gaps, (_align(lives[over].size_bytes), offsets[over]))
        size = _align(lives[index].size_bytes)
        fitting = bisect_left(gaps, (size, 0))
        if fitting < len(gaps):
            room, offsets[index] = gaps.pop(fitting)
            if room > size:
                insort(gaps, (room - size, offsets[index] + size))
        else:
            offsets[index], end = end, end + size
        heappush(alive, (lives[index].last_step, index))
    return offsets, end


def _neighbours(lives: Sequence[Life], started: Sequence[int]) -> list[list[int]] | None:
    """For each buffer the others that must not share bytes with it; None if they are too many."""
    met: list[list[int]] = [[] for _ in lives]
    count = 0
    alive: list[tuple[int, int]] = []
    for index in sorted(range(len(lives)), key=lambda i: lives[i].first_step):
        while alive and alive[0][0] < started[lives[index].first_step]:
            heappop(alive)  # over for all later ones, too
        count += len(alive)
        if count > _MOST_NEIGHBOURS:
            return None
        met[index] += [other for _, other in alive]
        for _, other in alive:
            met[other].append(index)
        heappush(alive, (lives[index].last_step, index))
    return met


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
