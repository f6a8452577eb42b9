"""Lifetimes of buffers: proof that those which share bytes of the arena are never in use together.

The proof is about whole buffers, so it holds for every value of every symbol. A buffer is in use
from the first step that touches it to the last, and until that step is surely complete. One that is
read before it is written keeps what an earlier run left, and is in use from the plan's start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from smelt.engine._plan import HostCall, Space
from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.engine._plan import Plan, Step

_NO_OWNER = -1


class IntervalMap:
    """Which owner each byte of a range has: a map of intervals, in logarithmic time."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._owners = array("q", [_NO_OWNER])

    def owners(self, low: int, high: int) -> set[int]:
        """The owners of the bytes from ``low`` up to ``high``, -1 for none."""
        first, last = self._intervals(low, high)
        return set(self._owners[first : last + 1])

    def num_intervals(self) -> int:
        """How many pieces the map has."""
        return len(self._starts)

    def give(self, low: int, high: int, owner: int) -> None:
        """Make ``owner`` own the bytes from ``low`` up to ``high``.

        Neighbouring pieces of one owner become one, else a plan of small writes would grow slow.
        """
        first, last = self._intervals(low, high)
        starts, owners = self._starts, self._owners
        if first and starts[first] == low and owners[first - 1] == owner:
            first -= 1
        if owners[first] == owner:
            low = starts[first]
        end = starts[last + 1] if last + 1 < len(starts) else None
        num_intervals = [(low, owner)]
        if starts[first] < low:
            num_intervals.insert(0, (starts[first], owners[first]))
        if end == high and owners[last + 1] == owner:
            last += 1
        elif end != high and owners[last] != owner:
            num_intervals.append((high, owners[last]))
        starts[first : last + 1] = [start for start, _ in num_intervals]
        owners[first : last + 1] = array("q", [one for _, one in num_intervals])

    def _intervals(self, low: int, high: int) -> tuple[int, int]:
        return bisect_right(self._starts, low) - 1, bisect_right(self._starts, high - 1) - 1


def completed_before(steps: Sequence[Step]) -> list[int]:
    """For each step, how many of the earliest steps are surely complete when it starts."""
    found: list[int] = []
    after_host = True
    for number, step in enumerate(steps):
        alone = after_host or isinstance(step, HostCall) or step.waits
        found.append(number if alone else found[-1])
        after_host = isinstance(step, HostCall)
    return found


def check_lifetimes(plan: Plan) -> None:
    """Check that buffers which share bytes of the arena are never in use together.

    Raises EngineFormatError: naming the step and both buffers.
    """
    first, last = _uses(plan)
    before = completed_before(plan.steps)
    owners = IntervalMap()
    lasting = {b for b, step in first.items() if step < 0}
    claims = sorted((step, b) for b, step in first.items() if step >= 0)
    for step, index in [*((0, b) for b in sorted(lasting)), *claims]:
        buffer = plan.buffers[index]
        low, high = buffer.start, buffer.start + buffer.size_bytes
        if low == high:
            continue
        for other in owners.owners(low, high) - {_NO_OWNER}:
            if other in lasting or last[other] >= before[step]:
                raise EngineFormatError(
                    f"step {step} uses buffer {index} while buffer {other}, which shares bytes "
                    "with it, is in use"
                )
        owners.give(low, high, index)


def _uses(plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """First and last step that touches each buffer of the arena; -1 where the first one reads."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        touched = list(_touched(step))
        written = {buffer for buffer, is_written in touched if is_written}
        for buffer, _ in touched:
            if plan.buffers[buffer].space is Space.ARENA:
                first.setdefault(buffer, number if buffer in written else -1)
                last[buffer] = number
    return first, last


def _touched(step: Step) -> Iterator[tuple[int, bool]]:
    """Every buffer that a step touches, and whether it writes it."""
    if isinstance(step, HostCall):
        yield from ((view.buffer, False) for view in step.inputs if view is not None)
        yield from ((view.buffer, True) for view in step.outputs)
    else:
        yield from ((v.buffer, i in step.writes) for i, v in enumerate(step.operands))
