"""Offsets in the arena: buffers whose lives do not meet share bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT_BYTES = 64


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
    Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020).
    """
    offsets = [0] * len(lives)
    placed: list[int] = []
    order = sorted(range(len(lives)), key=lambda i: (-lives[i].size_bytes, lives[i].first_step))
    for index in order:
        life = lives[index]
        neighbours = sorted(
            (offsets[other], lives[other].size_bytes)
            for other in placed
            if _meet(life, lives[other], started)
        )
        place = 0
        for start, size in neighbours:
            if place + life.size_bytes <= start:
                break
            place = max(place, _align(start + size))
        offsets[index] = place
        placed.append(index)
    end = max((offsets[i] + life.size_bytes for i, life in enumerate(lives)), default=0)
    return offsets, _align(end)


def lower_bound(lives: Sequence[Life], steps: int) -> int:
    """The largest sum of living sizes in any step, in bytes: no arena can be smaller."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first_step] += _align(life.size_bytes)
        change[life.last_step + 1] -= _align(life.size_bytes)
    total = largest = 0
    for delta in change:
        total += delta
        largest = max(largest, total)
    return largest


def _meet(a: Life, b: Life, started: Sequence[int]) -> bool:
    return not (a.last_step < started[b.first_step] or b.last_step < started[a.first_step])


def _align(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
