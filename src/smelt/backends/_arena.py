"""Offsets in the arena: buffers whose lives do not meet share bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT_BYTES: Final = 128
"""A line of a GPU's caches, and two of a processor's: rows of whole lines then touch no more of
them than they have."""
_ATTEMPTS: Final = 100


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
            starts. Two buffers may share
            bytes only if one's last use is complete when the other's first write starts.

    Largest first, each at the lowest place where it meets no living neighbour (greedy by size:
    Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020). While
    that takes more than the lower bound, the buffer that sticks out is placed before its
    neighbours, and all are placed anew.
    """
    met = [[i for i, b in enumerate(lives) if _meet(a, b, started)] for a in lives]
    sizes = [_align(life.size_bytes) for life in lives]
    order = sorted(range(len(lives)), key=lambda i: (-lives[i].size_bytes, lives[i].first_step))
    bound = lower_bound(lives, started)
    best, least = _place(sizes, met, order)
    offsets, size = best, least
    for _ in range(_ATTEMPTS):
        if least <= bound:
            break
        highest = next(i for i in order if offsets[i] + sizes[i] == size)
        order.remove(highest)
        order.insert(min(order.index(i) for i in met[highest] if i != highest), highest)
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
        over = next((s for s, before in enumerate(started) if before > life.last_step), None)
        change[-1 if over is None else over] -= size
    total = largest = 0
    for delta in change:
        total += delta
        largest = max(largest, total)
    return largest


def _meet(a: Life, b: Life, started: Sequence[int]) -> bool:
    return not (a.last_step < started[b.first_step] or b.last_step < started[a.first_step])


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
