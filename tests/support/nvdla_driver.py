"""A driver that records, in place of kernel and hardware; and a device file that decodes ioctls."""

from __future__ import annotations

import ctypes
import errno
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.port import (
    DeviceHardware,
    NvDlaHeap,
    PhysicalAddress,
    PhysicalRegion,
    PhysicalTask,
    PortServer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE_BYTES: Final = 4096
FAILING_BYTE: Final = 0xEE
"""A task whose memory begins with it fails."""


@dataclass
class RecordingDriver:
    """Runs a task by adding one to every byte at its last address, from the bytes at its first."""

    num_devices: int = 2
    room_bytes: int = 1 << 20
    tasks: list[tuple[int, PhysicalTask]] = field(default_factory=list[tuple[int, PhysicalTask]])
    regions: dict[int, PhysicalRegion] = field(default_factory=dict[int, PhysicalRegion])
    on_execute: Callable[[RecordingDriver, PhysicalTask], None] | None = None
    next_address: int = 0x8000_0000
    hardware: DeviceHardware | None = None

    def allocate(self, instance: int, size: int, heap: NvDlaHeap, /) -> PhysicalRegion:
        assert 0 <= instance < self.num_devices
        if size > self.room_bytes:
            raise NvdlaError(NvError.INSUFFICIENT_MEMORY, f"{size} bytes do not fit")
        region = PhysicalRegion(self.next_address, np.zeros(size, np.uint8), heap)
        self.next_address += -(-size // PAGE_BYTES) * PAGE_BYTES
        self.regions[region.address] = region
        return region

    def release(self, instance: int, region: PhysicalRegion, /) -> None:
        assert 0 <= instance < self.num_devices
        del self.regions[region.address]

    def execute(self, instance: int, task: PhysicalTask, /) -> None:
        self.tasks.append((instance, task))
        if self.on_execute is not None:
            self.on_execute(self, task)
            return
        source, target = self.at(task.addresses[0]), self.at(task.addresses[-1])
        if source[0] == FAILING_BYTE:
            raise NvdlaError(NvError.TIMEOUT, "the engine does not answer")
        count = min(source.size, target.size)
        target[:count] = source[:count] + 1

    def at(self, place: PhysicalAddress) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The memory from an address on."""
        address = place.address
        for start, region in self.regions.items():
            if start <= address < start + region.data.nbytes:
                return region.data[address - start :]
        raise AssertionError(f"no memory at {address:#x}")


class FakeDeviceFile:
    """The kernel's side of a device node: it decodes what user space packs, field by field.

    The layouts are written out here once more, by hand, from the kernel's header.
    """

    def __init__(self, driver: RecordingDriver, instance: int) -> None:
        self.driver = driver
        self.instance = instance
        self.requests: list[int] = []
        self.is_closed = False
        self._gems: dict[int, PhysicalRegion] = {}
        self._shared: dict[int, int] = {}
        self._next = 1

    def ioctl(self, request: int, argument: bytearray, /) -> None:
        self.requests.append(request)
        actions = {
            0xC010_6440: self._submit,
            0xC010_6441: self._create,
            0xC010_6442: self._map,
            0xC004_6443: self._destroy,
            0xC00C_642D: self._share,
        }
        if request not in actions:
            raise OSError(errno.ENOTTY, "no such ioctl")
        assert len(argument) == request >> 16 & 0x3FFF
        actions[request](argument)

    def mmap(self, offset: int, size_bytes: int, /) -> memoryview:
        region = self._gems[offset // PAGE_BYTES]
        assert size_bytes <= region.data.nbytes
        return region.data.data

    def close_descriptor(self, descriptor: int, /) -> None:
        del self._shared[descriptor]

    def close(self) -> None:
        assert not self._gems
        assert not self._shared
        self.is_closed = True

    def _create(self, argument: bytearray) -> None:
        heap = int.from_bytes(argument[4:8], "little")
        size = int.from_bytes(argument[8:16], "little")
        try:
            region = self.driver.allocate(self.instance, size, NvDlaHeap(heap))
        except NvdlaError as error:
            raise OSError(errno.ENOMEM, str(error)) from error
        self._gems[self._next] = region
        argument[0:4] = self._next.to_bytes(4, "little")
        self._next += 1

    def _share(self, argument: bytearray) -> None:
        handle = int.from_bytes(argument[0:4], "little")
        assert int.from_bytes(argument[4:8], "little") == 0o2000000
        self._shared[1000 + handle] = handle
        argument[8:12] = (1000 + handle).to_bytes(4, "little")

    def _map(self, argument: bytearray) -> None:
        handle = int.from_bytes(argument[0:4], "little")
        argument[8:16] = (handle * PAGE_BYTES).to_bytes(8, "little")

    def _destroy(self, argument: bytearray) -> None:
        region = self._gems.pop(int.from_bytes(argument, "little"))
        self.driver.release(self.instance, region)

    def _submit(self, argument: bytearray) -> None:
        pointer = int.from_bytes(argument[0:8], "little")
        count = int.from_bytes(argument[8:10], "little")
        version = int.from_bytes(argument[12:16], "little")
        assert count == 1
        head = ctypes.string_at(pointer, 16)
        num_addresses = int.from_bytes(head[0:4], "little")
        assert head[4:8] == b"\xff\xff\xff\xff", "no timeout"
        places = ctypes.string_at(int.from_bytes(head[8:16], "little"), 16 * num_addresses)
        addresses: list[PhysicalAddress] = []
        for index in range(num_addresses):
            place = places[16 * index : 16 * index + 16]
            gem = self._shared[int.from_bytes(place[0:4], "little")]
            offset = int.from_bytes(place[8:16], "little")
            addresses.append(self._gems[gem].at(offset))
        task = PhysicalTask(0, tuple(addresses), (version >> 16, version >> 8 & 255, version & 255))
        try:
            self.driver.execute(self.instance, task)
        except NvdlaError as error:
            raise OSError(errno.ETIMEDOUT, str(error)) from error


def main() -> None:
    """Serve a recording driver at the path that is asked for."""
    with PortServer(sys.argv[1], RecordingDriver()) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
