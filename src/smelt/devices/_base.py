"""What every device offers the runtime, and how memory is accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class AllocationTracker(Protocol):
    """Hears of every allocation of a device."""

    def allocated(self, address: int, size_bytes: int, tag: str) -> None:
        """Note that memory was taken, for the purpose ``tag``."""
        ...

    def released(self, address: int, size_bytes: int, tag: str) -> None:
        """Note that it was given back."""
        ...


class Allocation(Protocol):
    """A stretch of device memory; it is given back when closed or forgotten."""

    @property
    def address(self) -> int:
        """Where it starts, aligned for every kernel."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes were asked for."""
        ...

    def close(self) -> None:
        """Give the memory back; again is harmless."""
        ...


class HostAllocation(Allocation, Protocol):
    """An allocation that numpy can look into."""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """Its content, not copied."""
        ...


class CompletionQuery(Protocol):
    """Work that goes on elsewhere."""

    def query(self) -> bool:
        """Whether it is complete."""
        ...

    def synchronize(self) -> None:
        """Wait until it is complete."""
        ...


class DLPackArray(Protocol):
    """An array of any library that speaks DLPack."""

    def __dlpack__(self, **options: Any) -> object:
        """The array as a capsule."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device that holds it."""
        ...
