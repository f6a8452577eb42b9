"""Live ranges: check that buffers which share bytes of the arena are never in use together.

The check considers whole buffers, so it holds for all symbol values. A buffer is in use from the
first step that accesses it until the last one is certainly complete. A buffer that is read before
it is written keeps data of an earlier run, and is in use from the plan's start.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from smelt.engine._plan import HostStep, Space, accesses_of
from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine._plan import Plan, Step

_NO_OWNER = -1


class IntervalMap:
    """Map from byte intervals to owners, searched in logarithmic time."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._owners = array("q", [_NO_OWNER])

    def owners(self, low: int, high: int) -> set[int]:
        """Return the owners of the bytes from ``low`` up to ``high`` (exclusive); -1 for none."""
        first, last = self._intervals(low, high)
        return set(self._owners[first : last + 1])

    def num_intervals(self) -> int:
        """Return the number of intervals."""
        return len(self._starts)

    def give(self, low: int, high: int, owner: int) -> None:
        """Make ``owner`` own the bytes from ``low`` up to ``high`` (exclusive).

        Adjacent intervals of one owner are merged, which keeps plans of many small writes fast.
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
    """Return for each step the number of leading steps that are complete when it starts."""
    counts: list[int] = []
    after_host = True
    for number, step in enumerate(steps):
        alone = after_host or isinstance(step, HostStep) or step.waits
        counts.append(number if alone else counts[-1])
        after_host = isinstance(step, HostStep)
    return counts


def check_lifetimes(plan: Plan) -> None:
    """Check that buffers which share bytes of the arena are never in use together.

    Raises:
        EngineFormatError: two buffers overlap; the message names the step and both buffers.
    """
    first, last = _uses(plan)
    before = completed_before(plan.steps)
    owners = IntervalMap()
    from_start = {b for b, step in first.items() if step < 0}
    first_uses = sorted((step, b) for b, step in first.items() if step >= 0)
    for step, index in [*((0, b) for b in sorted(from_start)), *first_uses]:
        buffer = plan.buffers[index]
        low, high = buffer.start, buffer.start + buffer.size_bytes
        if low == high:
            continue
        for other in owners.owners(low, high) - {_NO_OWNER}:
            if other in from_start or last[other] >= before[step]:
                raise EngineFormatError(
                    f"buffers {index} and {other} share bytes, but step {step} uses buffer {index} "
                    f"while buffer {other} is in use"
                )
        owners.give(low, high, index)


def _uses(plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and last step that access each arena buffer; -1 if the first one reads."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        touched = [(view.buffer, is_written) for view, is_written in accesses_of(step)]
        written = {buffer for buffer, is_written in touched if is_written}
        for buffer, _ in touched:
            if plan.buffers[buffer].space is Space.ARENA:
                first.setdefault(buffer, number if buffer in written else -1)
                last[buffer] = number
    return first, last
