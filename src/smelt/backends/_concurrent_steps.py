"""Group independent steps of a plan so that their launches may run at the same time.

A small launch leaves most of a GPU idle. If each launch waits for the one before, the times of a
network's parallel branches add up. This module forms groups of steps that do not depend on each
other.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from smelt.engine import HostStep, Launch, accesses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.engine import Step, View

_LOOKAHEAD_STEPS: Final = 24
"""Maximum distance, in steps, at which a step may be moved forward into a group. A larger distance
would extend the live ranges of results."""


def group_concurrent_steps(
    steps: Sequence[Step], may_join: Callable[[Launch], bool]
) -> list[list[int]]:
    """Return the positions of the steps in groups; each group waits for all groups before it.

    Args:
        steps: steps of a plan in a valid order, in which each waits for those before it.
        may_join: whether a launch benefits from running at the same time as others.
    """
    needs = _dependencies(steps)
    done: set[int] = set()
    groups: list[list[int]] = []
    for first, step in enumerate(steps):
        if first in done:
            continue
        group = [first]
        if isinstance(step, Launch) and may_join(step):
            group += [
                number
                for number, other in _following_launches(steps, first)
                if number not in done and needs[number] <= done and may_join(other)
            ]
        done.update(group)
        groups.append(group)
    return groups


def _following_launches(steps: Sequence[Step], first: int) -> Iterator[tuple[int, Launch]]:
    """Yield the next launches with their positions, up to the first host call."""
    for number in range(first + 1, min(first + 1 + _LOOKAHEAD_STEPS, len(steps))):
        step = steps[number]
        if isinstance(step, HostStep):
            return
        yield number, step


def _dependencies(steps: Sequence[Step]) -> list[set[int]]:
    """Return, for each step, the earlier steps whose results or memory it depends on."""
    seen: dict[int, list[tuple[int, View, bool]]] = defaultdict(list)
    needed_steps: list[set[int]] = []
    for number, step in enumerate(steps):
        dependencies: set[int] = set()
        accesses = list(accesses_of(step))
        for view, is_written in accesses:
            dependencies |= {
                earlier
                for earlier, other, was_written in seen[view.buffer]
                if (is_written or was_written) and not are_disjoint(view, other)
            }
        for view, is_written in accesses:
            seen[view.buffer].append((number, view, is_written))
        needed_steps.append(dependencies)
    return needed_steps


def are_disjoint(a: View, b: View) -> bool:
    """Return whether two views on one buffer are known to be disjoint, by a shift on an axis."""
    size = a.dtype.size_bytes
    if a.strides != b.strides or size != b.dtype.size_bytes or a.halo or b.halo:
        return False
    if not isinstance(a.offset, int) or not isinstance(b.offset, int):
        return False
    shift, rest = divmod(b.offset - a.offset, size)
    rows = list(zip(a.strides, a.shape, b.shape, strict=True))
    return not rest and any(_are_disjoint_along(rows, axis, shift) for axis in range(len(rows)))


def _are_disjoint_along(
    rows: Sequence[tuple[object, object, object]], axis: int, shift: int
) -> bool:
    """Return whether views ``shift`` elements apart are separated along one axis."""
    stride, before, after = rows[axis]
    if shift < 0:
        shift, before, after = -shift, after, before
    if not (isinstance(stride, int) and isinstance(before, int) and isinstance(after, int)):
        return False
    if stride < 1 or shift % stride or shift // stride < before:
        return False
    axes = [(stride, shift // stride + after)]
    for number, (other, *extents) in enumerate(rows):
        if number == axis or extents == [1, 1]:
            continue
        if not isinstance(other, int) or other < 1:
            return False
        longest_extent = max((e for e in extents if isinstance(e, int)), default=0)
        axes.append((other, longest_extent if all(isinstance(e, int) for e in extents) else 0))
    axes.sort()
    # Each axis spans less than one stride of the next: no element has two sets of coordinates.
    inner = pairwise(axes)
    return all(extent and step * extent <= wider for (step, extent), (wider, _) in inner)
