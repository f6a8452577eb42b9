"""Device runtimes: memory, streams, code loading and launches, without compilers."""

from smelt.devices._base import (
    Allocation,
    AllocationTracker,
    CompletionQuery,
    DLPackArray,
    HostAllocation,
)

__all__ = [
    "Allocation",
    "AllocationTracker",
    "CompletionQuery",
    "DLPackArray",
    "HostAllocation",
]
