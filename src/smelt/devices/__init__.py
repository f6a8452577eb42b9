"""Device runtimes: memory, streams, code loading and launches, without compilers."""

from smelt.devices._base import (
    Allocation,
    AllocationTracker,
    CompletionQuery,
    DLPackArray,
    HostAllocation,
)
from smelt.devices._kinds import (
    DEVICE_GRAMMAR,
    DEVICE_KINDS,
    DeviceKind,
    DeviceName,
    device_kind,
)

__all__ = [
    "DEVICE_GRAMMAR",
    "DEVICE_KINDS",
    "Allocation",
    "AllocationTracker",
    "CompletionQuery",
    "DLPackArray",
    "DeviceKind",
    "DeviceName",
    "device_kind",
    "HostAllocation",
]
