"""Allocations of memory of the process, and what every device notifies of its own."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class AllocationTracker(Protocol):
    """Is notified of every allocation of a device."""

    def allocated(self, address: int, size_bytes: int, tag: str) -> None:
        """Record that memory was allocated for the purpose ``tag``."""
        ...

    def released(self, address: int, size_bytes: int, tag: str) -> None:
        """Record that the memory was released."""
        ...


class Resource:
    """Object of a driver that is released when it is closed or garbage-collected.

    Nothing is released at the interpreter's end, where the release of the context frees it, and
    nothing of an object that never called `release_by`.
    """

    __slots__ = ("__weakref__", "_finalizer")
    _finalizer: weakref.finalize[..., Resource]

    def release_by(self, release: Callable[..., object], *arguments: object) -> None:
        """Let the end of the object call ``release`` with ``arguments``."""
        self._finalizer = weakref.finalize(self, release, *arguments)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Release it once the work that uses it is complete. Idempotent."""
        if hasattr(self, "_finalizer"):
            self._finalizer()


class CpuAllocation:
    """Memory of this process as an array of bytes, of which a tracker is notified."""

    __slots__ = ("__weakref__", "_finalizer", "address", "bytes", "size_bytes")

    def __init__(
        self,
        content: NDArray[np.uint8],
        address: int,
        size_bytes: int,
        tag: str,
        tracker: AllocationTracker | None,
    ) -> None:
        self.bytes = content
        self.address = address
        self.size_bytes = size_bytes
        self._finalizer: weakref.finalize[..., CpuAllocation] | None = None
        if tracker is not None:
            tracker.allocated(address, size_bytes, tag)
            self._finalizer = weakref.finalize(self, tracker.released, address, size_bytes, tag)

    def close(self) -> None:
        """Release the memory, which nothing may use any more. Idempotent."""
        self.bytes = np.empty(0, np.uint8)
        if self._finalizer is not None:
            self._finalizer()
