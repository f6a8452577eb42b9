"""Streams and events by the device's name."""

from __future__ import annotations

from smelt.devices.cpu import CpuEvent, CpuStream
from smelt.errors import UnsupportedError

_HOST_DEVICES = frozenset({"cpu", "null"})


class Stream(CpuStream):
    """Work that is done in order, beside the thread that queues it."""

    def __init__(self, device: str = "cpu") -> None:
        """Make a stream of ``device``.

        Raises:
            UnsupportedError: the device has no streams here.
        """
        self.device = _checked(device)
        super().__init__()


class Event(CpuEvent):
    """A mark in a stream."""

    __slots__ = ("device",)

    def __init__(self, device: str = "cpu") -> None:
        """Make an event of ``device``.

        Raises:
            UnsupportedError: the device has no events here.
        """
        self.device = _checked(device)
        super().__init__()


def _checked(device: str) -> str:
    if device.partition(":")[0] not in _HOST_DEVICES:
        raise UnsupportedError(f"there are no streams for {device!r}; this smelt runs cpu and null")
    return device
