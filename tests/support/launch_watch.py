"""Whether a launch touches its operands alone, and nothing but weights before it has waited.

A kernel may start before the launch before it has ended. Results say nothing of a read that comes
too soon where launches run one after another; so every access is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.engine import Space

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Launch, Plan


@dataclass(frozen=True, slots=True)
class _ByteRange:
    """The bytes of an operand."""

    low: int
    high: int
    is_weight: bool
    is_written: bool


@dataclass(slots=True)
class LaunchWatch:
    """Follows the programs of one launch after another."""

    faults: list[str] = field(default_factory=list[str])
    _byte_ranges: list[_ByteRange] = field(default_factory=list[_ByteRange])
    _has_waited: bool = False

    def follow(
        self, launch: Launch, plan: Plan, bases: Sequence[int], values: Mapping[str, int]
    ) -> None:
        """Expect the programs of a launch whose buffers begin at ``bases``."""
        self._has_waited = True  # of the program before the first
        self._byte_ranges = []
        for number, view in enumerate(launch.operands):
            low, high = (bases[view.buffer] + at for at in view.footprint(values))
            is_weight = plan.buffers[view.buffer].space is Space.WEIGHTS
            self._byte_ranges.append(_ByteRange(low, high, is_weight, number in launch.writes))

    def begin_program(self) -> None:
        """Note that a program begins, and that the one before has ended."""
        if self._byte_ranges and not self._has_waited:
            self._note("a program ends without having waited")
        self._has_waited = False

    def end_launch(self) -> None:
        """Note that the last program has ended."""
        self.begin_program()
        self._byte_ranges = []

    def wait(self) -> None:
        """Note that the program has waited for the launches before."""
        self._has_waited = True

    def let_next_start(self) -> None:
        """Note that the next launch may start: it counts on all before this one having ended."""
        if self._byte_ranges and not self._has_waited:
            self._note("the next launch may start before this one has waited")

    def touch(self, addresses: NDArray[Any], size_bytes: int, *, is_written: bool) -> None:
        """Note that elements are read or written, all of one operand."""
        if not self._byte_ranges or not addresses.size:
            return
        low, high = int(addresses.min()), int(addresses.max()) + size_bytes
        what = "written" if is_written else "read"
        found = [s for s in self._byte_ranges if s.low <= low and high <= s.high]
        if not any(s.is_written or not is_written for s in found):
            self._note(f"bytes are {what} that are no operand's")
        elif not self._has_waited and (is_written or not any(s.is_weight for s in found)):
            self._note(f"an operand is {what} before the launches before have ended")

    def _note(self, fault: str) -> None:
        if fault not in self.faults:
            self.faults.append(fault)


def watch_accesses(memory: Any, watch: LaunchWatch) -> None:
    """Have the interpreter's memory tell of every access."""
    load, store = memory.load, memory.store

    def on_load(addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        watch.touch(addresses[_spread(mask, addresses)], np.dtype(dtype).itemsize, is_written=False)
        # A condition on scalars that is spread has the scalars' type there.
        return load(addresses, np.asarray(mask, np.bool_), other, dtype)

    def on_store(addresses: Any, values: Any, mask: Any) -> None:
        size_bytes = values.dtype.itemsize
        watch.touch(addresses[_spread(mask, addresses)], size_bytes, is_written=True)
        store(addresses, values, mask)

    memory.load, memory.store = on_load, on_store


def _spread(mask: Any, addresses: NDArray[Any]) -> NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(mask, np.bool_), addresses.shape)
