"""Reserved GPU address ranges to which memory is mapped on demand.

Source: CUDA Driver API reference, "Virtual Memory Management".
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from smelt.devices._allocations import Resource
from smelt.devices.cuda._memory import fill_memory

if TYPE_CHECKING:
    from smelt.devices._allocations import AllocationTracker
    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._memory import CudaAllocation, CudaMemory
    from smelt.devices.cuda._stream import CudaStream


class ReservedAddressRange(Resource):
    """A reserved address range; mapped memory is zeroed and stays mapped until the end."""

    __slots__ = (
        "_access",
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
            DeviceError: the address range cannot be reserved.
        """
        self.device, self.size_bytes, self.tag = device, size_bytes, tag
        self._tracker = tracker
        self._properties, self._access = _descriptions(device)
        granularity = device.driver.api.CUmemAllocationGranularity_flags
        minimum = granularity.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._granule = int(device.call("cuMemGetAllocationGranularity", self._properties, minimum))
        reserved_bytes = -(-size_bytes // self._granule) * self._granule
        what = f"{tag}: {size_bytes} bytes of address space cannot be reserved on {device!r}"
        pointer: Any = device.call("cuMemAddressReserve", reserved_bytes, 0, 0, 0, what=what)
        self.address = int(pointer)
        self._mapped: set[int] = set()
        """Indices of the granules that are mapped."""
        self._sizes: dict[int, int] = {}
        """Size in bytes of each mapping, by address."""
        self.release_by(_release, device, self.address, reserved_bytes, self._sizes, tag, tracker)

    def commit(self, address: int, size_bytes: int, stream: CudaStream) -> None:
        """Map zeroed memory to the unmapped part of a range; addresses outside are ignored.

        Work that is enqueued on ``stream`` afterwards may use the memory.

        Raises:
            DeviceError: GPU memory is insufficient.
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
        what = f"{self.tag}: {size} bytes cannot be allocated on {device!r}"
        memory = device.call("cuMemCreate", size, self._properties, 0, what=what)
        try:
            device.call("cuMemMap", address, size, 0, memory, 0)
            device.call("cuMemSetAccess", address, size, [self._access], 1)
            fill_memory(device, address, size, stream)
        except BaseException:
            device.give_back("cuMemUnmap", address, size)
            raise
        finally:
            device.give_back("cuMemRelease", memory)  # the mapping keeps the memory alive
        self._sizes[address] = size
        self._mapped.update(granules)
        if self._tracker is not None:
            self._tracker.allocated(address, size, self.tag)


def reserve_memory(
    memory: CudaMemory, size_bytes: int, tag: str
) -> ReservedAddressRange | CudaAllocation:
    """Reserve memory to be committed on demand; allocate it at once if the GPU lacks support.

    Raises:
        DeviceError: memory or addresses are insufficient.
    """
    if size_bytes and memory.device.properties.has_virtual_memory:
        return ReservedAddressRange(memory.device, size_bytes, tag, memory.tracker)
    return memory.allocate(size_bytes, tag)


def _descriptions(device: CudaDevice) -> tuple[Any, Any]:
    """Return the allocation properties and the access descriptor for memory of a GPU."""
    api = device.driver.api
    properties, access = api.CUmemAllocationProp(), api.CUmemAccessDesc()
    properties.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device.index
    access.location.type, access.location.id = properties.location.type, device.index
    access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return properties, access


def _release(
    device: CudaDevice,
    start: int,
    reserved_bytes: int,
    sizes: dict[int, int],
    tag: str,
    tracker: AllocationTracker | None,
) -> None:
    if sizes:
        # Unlike cuMemFree, unmapping does not wait for running work.
        device.give_back("cuCtxSynchronize")
    for address, size in sizes.items():
        device.give_back("cuMemUnmap", address, size)
        if tracker is not None:
            tracker.released(address, size, tag)
    device.give_back("cuMemAddressFree", start, reserved_bytes)
