"""Memory without bytes, and run lists that do not run."""

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
    """So many bytes of nothing, at the address 0."""

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
        """Give nothing back; again is harmless."""
        if self._finalizer is not None:
            self._finalizer()


class NullMemory:
    """Counts allocations and makes none."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: AllocationTracker | None = None) -> None:
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> NullAllocation:
        """Return ``size_bytes`` of nothing for the purpose ``tag``."""
        return NullAllocation(size_bytes, tag, self.tracker)


class NullRunList:
    """Rows that are never run. Its words are real, so that preparing a run costs what it costs."""

    def __init__(self, words: int, rows: int) -> None:
        self.words: NDArray[np.int64] = np.zeros(words, np.int64)
        self._rows = rows
        self._is_closed = False

    def set_chunks(self, chunks: Sequence[int]) -> None:
        """Take every row's number of chunks. Raises ContextError: one is negative."""
        if min(chunks, default=0) < 0:
            raise ContextError("a launch has a negative number of chunks")

    def run(self, *, timed: bool = False) -> None:
        """Do nothing. Raises ContextError: the list is closed."""
        del timed
        if self._is_closed:
            raise ContextError("this run list is closed")

    def row_ticks(self) -> list[int]:
        """Return how long nothing took, for each row."""
        return [0] * self._rows

    def close(self) -> None:
        """Refuse to run from now on."""
        self._is_closed = True
