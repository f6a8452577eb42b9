"""Memory without storage, and run lists that execute nothing."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ContextError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.devices._base import AllocationTracker


class NullAllocation:
    """An allocation without storage, at address 0."""

    __slots__ = ("__weakref__", "_finalizer", "address", "bytes", "size_bytes")

    def __init__(self, size_bytes: int, tag: str, tracker: AllocationTracker | None) -> None:
        self.address = 0
        self.size_bytes = size_bytes
        self.bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._finalizer: weakref.finalize[..., NullAllocation] | None = None
        if tracker is not None:
            tracker.allocated(0, size_bytes, tag)
            self._finalizer = weakref.finalize(self, tracker.released, 0, size_bytes, tag)

    def close(self) -> None:
        """Notify the tracker. Idempotent."""
        if self._finalizer is not None:
            self._finalizer()


class NullMemory:
    """Notifies a tracker of allocations and allocates nothing."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: AllocationTracker | None = None) -> None:
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> NullAllocation:
        """Return an allocation of ``size_bytes`` without storage for the purpose ``tag``."""
        return NullAllocation(size_bytes, tag, self.tracker)


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
