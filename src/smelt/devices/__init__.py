"""Run half of each device: memory, queues, code loading, launch. No compiler is known here."""

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
