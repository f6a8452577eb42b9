"""Addresses of a GPU that are reserved at once, with memory mapped behind them as it is needed.

Source: CUDA Driver API reference, "Virtual Memory Management".
"""

from __future__ import annotations

import weakref
from itertools import groupby
from typing import TYPE_CHECKING, Any

from smelt.devices.cuda._memory import fill_memory

if TYPE_CHECKING:
    from smelt.devices._base import AllocationTracker
    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._memory import CudaAllocation, CudaMemory
    from smelt.devices.cuda._stream import CudaStream


class CudaReservation:
    """Addresses without memory at first. What is mapped stays, and holds zeros at first."""

    __slots__ = (
        "__weakref__",
        "_access",
        "_finalizer",
        "_granule",
        "_mapped",
        "_properties",
        "_sizes",
        "_tracker",
        "address",
        "device",
        "size_bytes",
        "tag",
    )

    def __init__(
        self, device: CudaDevice, size_bytes: int, tag: str, tracker: AllocationTracker | None
    ) -> None:
        """Reserve the addresses of ``size_bytes`` for the purpose ``tag``.

        Raises:
            DeviceError: the driver has not so many.
        """
        self.device, self.size_bytes, self.tag = device, size_bytes, tag
        self._tracker = tracker
        self._properties, self._access = _descriptions(device)
        granularity = device.driver.api.CUmemAllocationGranularity_flags
        minimum = granularity.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._granule = int(device.call("cuMemGetAllocationGranularity", self._properties, minimum))
        whole = -(-size_bytes // self._granule) * self._granule
        what = f"{tag}: reserving {size_bytes} bytes of addresses on {device!r}"
        pointer: Any = device.call("cuMemAddressReserve", whole, 0, 0, 0, what=what)
        self.address = int(pointer)
        self._mapped: set[int] = set()
        """Numbers of the granules that have memory."""
        self._sizes: dict[int, int] = {}
        """Bytes of each mapping, by its address."""
        self._finalizer = weakref.finalize(
            self, _give_back, device, self.address, whole, self._sizes, tag, tracker
        )
        self._finalizer.atexit = False  # the context goes first, and all memory with it

    def commit(self, address: int, size_bytes: int, stream: CudaStream) -> None:
        """Map memory behind those of the addresses that are of this reservation and have none.

        Work that is queued on ``stream`` from now on finds zeros there.

        Raises:
            DeviceError: the GPU has not so much memory.
        """
        first = max(address - self.address, 0)
        last = min(address + size_bytes - self.address, self.size_bytes)
        numbers = range(first // self._granule, -(-last // self._granule)) if first < last else ()
        missing = [number for number in numbers if number not in self._mapped]
        for _, group in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
            run = [number for _, number in group]
            self._map(range(run[0], run[-1] + 1), stream)

    def _map(self, granules: range, stream: CudaStream) -> None:
        device, size = self.device, len(granules) * self._granule
        address = self.address + granules.start * self._granule
        what = f"{self.tag}: {size} bytes on {device!r}"
        memory = device.call("cuMemCreate", size, self._properties, 0, what=what)
        try:
            device.call("cuMemMap", address, size, 0, memory, 0)
            device.call("cuMemSetAccess", address, size, [self._access], 1)
            fill_memory(device, address, size, stream)
        except BaseException:
            device.give_back("cuMemUnmap", address, size)
            raise
        finally:
            device.give_back("cuMemRelease", memory)  # a mapping keeps its memory
        self._sizes[address] = size
        self._mapped.update(granules)
        if self._tracker is not None:
            self._tracker.allocated(address, size, self.tag)

    def close(self) -> None:
        """Give everything back, once work that uses it is done; again is harmless."""
        self._finalizer()


def reserve_memory(
    memory: CudaMemory, size_bytes: int, tag: str
) -> CudaReservation | CudaAllocation:
    """Return addresses whose memory comes as it is needed, or at once where the GPU cannot do that.

    Raises:
        DeviceError: there is not so much.
    """
    if size_bytes and memory.device.properties.has_virtual_memory:
        return CudaReservation(memory.device, size_bytes, tag, memory.tracker)
    return memory.allocate(size_bytes, tag)


def _descriptions(device: CudaDevice) -> tuple[Any, Any]:
    """What memory is made, and who may read and write it: the GPU that it is of."""
    api = device.driver.api
    properties, access = api.CUmemAllocationProp(), api.CUmemAccessDesc()
    properties.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.index
    access.location.type, access.location.id = properties.location.type, device.index
    access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return properties, access


def _give_back(
    device: CudaDevice,
    start: int,
    whole: int,
    sizes: dict[int, int],
    tag: str,
    tracker: AllocationTracker | None,
) -> None:
    if sizes:
        device.give_back("cuCtxSynchronize")  # to unmap waits for nobody, unlike cuMemFree
    for address, size in sizes.items():
        device.give_back("cuMemUnmap", address, size)
        if tracker is not None:
            tracker.released(address, size, tag)
    device.give_back("cuMemAddressFree", start, whole)
