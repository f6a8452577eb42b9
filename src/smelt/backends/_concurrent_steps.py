"""Steps that do not need each other, put side by side.

A small launch leaves most of a GPU idle, and where each waits for the one before, branches of a
network add up. Here the steps of a plan that only follow one another by chance become groups whose
launches may run at once.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from smelt.engine import HostCall, Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.engine import Step, View

_LOOKAHEAD_STEPS: Final = 24
"""How many steps ahead one is looked for that may join: its results live longer for it."""


def group_concurrent_steps(
    steps: Sequence[Step], may_join: Callable[[Launch], bool]
) -> list[list[int]]:
    """Positions of the steps in a new order, in groups; each group waits for all before it.

    Args:
        steps: of a plan, in an order that is right, each waiting for those before it.
        may_join: whether a launch gains by running beside others.
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
    """The next launches with their positions, up to a step that Python does."""
    for number in range(first + 1, min(first + 1 + _LOOKAHEAD_STEPS, len(steps))):
        step = steps[number]
        if isinstance(step, HostCall):
            return
        yield number, step


def _dependencies(steps: Sequence[Step]) -> list[set[int]]:
    """For each step, the earlier ones that it needs, or that must be through with its memory."""
    seen: dict[int, list[tuple[int, View, bool]]] = defaultdict(list)
    needs: list[set[int]] = []
    for number, step in enumerate(steps):
        own: set[int] = set()
        accesses = list(accesses_of(step))
        for view, is_written in accesses:
            own |= {
                earlier
                for earlier, other, was_written in seen[view.buffer]
                if (is_written or was_written) and not are_disjoint(view, other)
            }
        for view, is_written in accesses:
            seen[view.buffer].append((number, view, is_written))
        needs.append(own)
    return needs


def accesses_of(step: Step) -> Iterator[tuple[View, bool]]:
    """The windows that a step reads or writes, and which of the two."""
    if isinstance(step, HostCall):
        yield from ((view, False) for view in step.inputs if view is not None)
        yield from ((view, True) for view in step.outputs)
        return
    for position, view in enumerate(step.operands):
        yield view, position in step.writes


def are_disjoint(a: View, b: View) -> bool:
    """Whether two windows on one buffer surely share no byte: those side by side along an axis."""
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
    """Whether windows that are ``shift`` elements apart are so along one axis, and do not meet."""
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
        longest = max((e for e in extents if isinstance(e, int)), default=0)
        axes.append((other, longest if all(isinstance(e, int) for e in extents) else 0))
    axes.sort()
    # Each axis goes through less than one step of the next: no element has two sets of coordinates.
    inner = pairwise(axes)
    return all(extent and step * extent <= wider for (step, extent), (wider, _) in inner)
