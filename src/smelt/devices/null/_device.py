"""Memory without storage, and run lists that execute nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.devices._allocations import CpuAllocation
from smelt.errors import ContextError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.devices._allocations import AllocationTracker


class NullMemory:
    """Notifies a tracker of allocations and allocates nothing."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: AllocationTracker | None = None) -> None:
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return an allocation at address 0 without storage for the purpose ``tag``."""
        return CpuAllocation(np.empty(0, np.uint8), 0, size_bytes, tag, self.tracker)


class NullRunList:
    """A run list that executes nothing; it stores words, so that preparing a run has its cost."""

    def __init__(self, words: int, rows: int) -> None:
        self.words: NDArray[np.int64] = np.zeros(words, np.int64)
        self._rows = rows
        self._is_closed = False

    def set_chunks(self, chunks: Sequence[int]) -> None:
        """Check every row's number of chunks. Raises ContextError: one is negative."""
        if min(chunks, default=0) < 0:
            raise ContextError("a launch has a negative number of chunks")

    def run(self, *, timed: bool = False) -> None:
        """Do nothing. Raises ContextError: the list is closed."""
        del timed
        if self._is_closed:
            raise ContextError("this run list is closed")

    def row_ticks(self) -> list[int]:
        """Return 0 ticks for each row."""
        return [0] * self._rows

    def close(self) -> None:
        """Close the list; later runs raise ContextError."""
        self._is_closed = True
