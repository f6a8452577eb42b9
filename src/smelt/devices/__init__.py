"""Device runtimes: memory, streams, code loading and launches, without compilers."""

from smelt.devices._allocations import AllocationTracker
from smelt.devices._kinds import DEVICE_GRAMMAR, DEVICE_KINDS, DeviceKind, DeviceName, device_kind

__all__ = [
    "DEVICE_GRAMMAR",
    "DEVICE_KINDS",
    "AllocationTracker",
    "DeviceKind",
    "DeviceName",
    "device_kind",
]
