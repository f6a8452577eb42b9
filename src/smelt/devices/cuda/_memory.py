"""GPU memory, pinned host memory, and copies between them.

Source: CUDA Driver API reference, "Memory Management".
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices._allocations import Resource
from smelt.devices.cuda._driver import CudaError
from smelt.errors import DeviceError
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from smelt.devices._allocations import AllocationTracker
    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

_ON_DEVICE: Final = 2
"""CU_MEMORYTYPE_DEVICE: the memory is on a GPU."""


class CudaAllocation(Resource):
    """GPU memory, 256-byte aligned, with undefined initial content."""

    __slots__ = ("address", "device", "size_bytes")

    def __init__(
        self, device: CudaDevice, address: int, size_bytes: int, release: Callable[[], None]
    ) -> None:
        self.device = device
        self.address = address
        self.size_bytes = size_bytes
        self.release_by(release)


class CudaMemory:
    """Allocates memory of one GPU and notifies the tracker, if there is one."""

    __slots__ = ("device", "tracker")

    def __init__(self, device: CudaDevice, tracker: AllocationTracker | None = None) -> None:
        self.device = device
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> CudaAllocation:
        """Return ``size_bytes`` of memory for the purpose ``tag``.

        Raises:
            DeviceError: GPU memory is insufficient.
        """
        device, tracker = self.device, self.tracker
        pointer: Any = 0
        if size_bytes:
            pointer = _allocate(device, "cuMemAlloc", (size_bytes,), tag, size_bytes)
        address = int(pointer)

        def release() -> None:
            if size_bytes:
                device.give_back("cuMemFree", pointer)
            if tracker is not None:
                tracker.released(address, size_bytes, tag)

        if tracker is not None:
            tracker.allocated(address, size_bytes, tag)
        return CudaAllocation(device, address, size_bytes, release)


class PinnedAllocation(Resource):
    """Pinned host memory that GPUs access directly; ``bytes`` is its content."""

    __slots__ = ("address", "bytes", "size_bytes")

    def __init__(self, device: CudaDevice, size_bytes: int, tag: str) -> None:
        self.address = 0
        self.size_bytes = size_bytes
        self.bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        if not size_bytes:
            return
        pointer = _allocate(device, "cuMemHostAlloc", (size_bytes, 0), tag, size_bytes)
        self.address = int(pointer)
        memory = (ctypes.c_uint8 * size_bytes).from_address(self.address)
        self.bytes = np.frombuffer(memoryview(memory), np.uint8)
        self.release_by(device.give_back, "cuMemFreeHost", pointer)

    @override
    def close(self) -> None:
        """Free the memory, which nothing may use any more. Idempotent."""
        self.bytes = np.empty(0, np.uint8)
        super().close()


def _allocate(
    device: CudaDevice, function: str, arguments: tuple[Any, ...], tag: str, size_bytes: int
) -> Any:
    if size_bytes < 0:
        raise DeviceError(f"{tag}: {size_bytes} bytes cannot be allocated")
    return device.call(
        function, *arguments, what=f"{tag}: {size_bytes} bytes cannot be allocated on {device!r}"
    )


def copy_memory(
    device: CudaDevice, target: int, source: int, size_bytes: int, stream: CudaStream
) -> None:
    """Enqueue a copy between two addresses on GPUs or the host (unified addressing).

    Pageable host memory is read before the function returns.

    Raises:
        CudaError: an address is invalid.
    """
    if size_bytes:
        device.call("cuMemcpyAsync", target, source, size_bytes, stream.handle)


def fill_memory(device: CudaDevice, target: int, size_bytes: int, stream: CudaStream) -> None:
    """Enqueue zeroing of GPU memory. Raises CudaError: the address is invalid."""
    if size_bytes:
        device.call("cuMemsetD8Async", target, 0, size_bytes, stream.handle)


def owner_of(device: CudaDevice, address: int) -> int | None:
    """Return the index of the GPU that owns an address; None for pageable host memory.

    Pinned host memory counts as memory of ``device``, since every GPU can access it.
    """
    kinds = device.driver.api.CUpointer_attribute

    def read(kind: str) -> Any:
        attribute = getattr(kinds, f"CU_POINTER_ATTRIBUTE_{kind}")
        return device.call("cuPointerGetAttribute", attribute, address)

    try:
        read("DEVICE_ORDINAL")  # only to test for success: cuda.bindings 13.3 always reads 0
    except CudaError:
        return None
    if int(read("MEMORY_TYPE")) != _ON_DEVICE:
        return device.index
    context = read("CONTEXT")
    if not int(context):  # memory of a pool has no context
        return device.index
    previous = device.driver.call("cuCtxGetCurrent")
    device.driver.call("cuCtxSetCurrent", context)
    try:
        return int(device.driver.call("cuCtxGetDevice"))
    finally:
        device.driver.call("cuCtxSetCurrent", previous)
