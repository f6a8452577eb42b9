"""Protocols that every device implements: allocations, trackers, completion, DLPack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class AllocationTracker(Protocol):
    """Is notified of every allocation of a device."""

    def allocated(self, address: int, size_bytes: int, tag: str) -> None:
        """Record that memory was allocated for the purpose ``tag``."""
        ...

    def released(self, address: int, size_bytes: int, tag: str) -> None:
        """Record that the memory was released."""
        ...


class Allocation(Protocol):
    """A block of device memory; released when closed or garbage-collected."""

    @property
    def address(self) -> int:
        """Start address, aligned for every kernel."""
        ...

    @property
    def size_bytes(self) -> int:
        """Requested size in bytes."""
        ...

    def close(self) -> None:
        """Release the memory. Idempotent."""
        ...


class HostAllocation(Allocation, Protocol):
    """An allocation that is accessible as a numpy array."""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The content, without a copy."""
        ...


class CompletionQuery(Protocol):
    """Asynchronous work whose completion can be queried."""

    def query(self) -> bool:
        """Return whether the work is complete."""
        ...

    def synchronize(self) -> None:
        """Wait until the work is complete."""
        ...


class DLPackArray(Protocol):
    """An array of any library that supports DLPack."""

    def __dlpack__(self, **options: Any) -> object:
        """Return the array as a DLPack capsule."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device type and index of the device that holds the array."""
        ...
