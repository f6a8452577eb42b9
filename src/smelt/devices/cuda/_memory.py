"""Memory of a GPU, pinned memory of the host, and copies between whatever there is.

Source: CUDA Driver API reference, "Memory Management".
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda._driver import CudaError
from smelt.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from smelt.devices._base import AllocationTracker
    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

_ON_DEVICE: Final = 2
"""The driver's number for memory of a GPU."""


class CudaAllocation:
    """Memory of a GPU, 256-byte aligned. Its first content is undefined."""

    __slots__ = ("__weakref__", "_finalizer", "address", "device", "size_bytes", "tag")

    def __init__(
        self,
        device: CudaDevice,
        address: int,
        size_bytes: int,
        tag: str,
        give_back: Callable[[], None],
    ) -> None:
        self.device = device
        self.address = address
        self.size_bytes = size_bytes
        self.tag = tag
        self._finalizer = weakref.finalize(self, give_back)
        self._finalizer.atexit = False  # the context goes first, and all memory with it

    def close(self) -> None:
        """Give the memory back, once work that uses it is done; again is harmless."""
        self._finalizer()


class CudaMemory:
    """Allocates memory of one GPU; tells a tracker if there is one."""

    __slots__ = ("device", "tracker")

    def __init__(self, device: CudaDevice, tracker: AllocationTracker | None = None) -> None:
        self.device = device
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> CudaAllocation:
        """Return ``size_bytes`` of memory for the purpose ``tag``.

        Raises:
            DeviceError: there is not so much.
        """
        device, tracker = self.device, self.tracker
        pointer: Any = 0
        if size_bytes:
            pointer = _taken(device, "cuMemAlloc", (size_bytes,), tag, size_bytes)
        address = int(pointer)

        def give_back() -> None:
            if size_bytes:
                device.give_back("cuMemFree", pointer)
            if tracker is not None:
                tracker.released(address, size_bytes, tag)

        if tracker is not None:
            tracker.allocated(address, size_bytes, tag)
        return CudaAllocation(device, address, size_bytes, tag, give_back)


class PinnedAllocation:
    """Memory of the host that GPUs read and write directly, seen through ``bytes``."""

    __slots__ = ("__weakref__", "_finalizer", "address", "bytes", "size_bytes")

    def __init__(self, device: CudaDevice, size_bytes: int, tag: str) -> None:
        self.address = 0
        self.size_bytes = size_bytes
        self.bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._finalizer: weakref.finalize[..., PinnedAllocation] | None = None
        if not size_bytes:
            return
        pointer = _taken(device, "cuMemHostAlloc", (size_bytes, 0), tag, size_bytes)
        self.address = int(pointer)
        memory = (ctypes.c_uint8 * size_bytes).from_address(self.address)
        self.bytes = np.frombuffer(memoryview(memory), np.uint8)
        self._finalizer = weakref.finalize(self, device.give_back, "cuMemFreeHost", pointer)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Give the memory back; again is harmless. Nothing may use it any more."""
        self.bytes = np.empty(0, np.uint8)
        if self._finalizer is not None:
            self._finalizer()


def _taken(
    device: CudaDevice, take: str, arguments: tuple[Any, ...], tag: str, size_bytes: int
) -> Any:
    if size_bytes < 0:
        raise DeviceError(f"{tag}: {size_bytes} bytes cannot be allocated")
    return device.call(take, *arguments, what=f"{tag}: {size_bytes} bytes on {device!r}")


def copy_memory(
    device: CudaDevice, target: int, source: int, size_bytes: int, stream: CudaStream
) -> None:
    """Queue a copy between two addresses, wherever they are: the driver knows whose they are.

    Pageable memory of the host is read before this returns.

    Raises:
        CudaError: an address is nobody's.
    """
    if size_bytes:
        device.call("cuMemcpyAsync", target, source, size_bytes, stream.handle)


def fill_memory(device: CudaDevice, target: int, size_bytes: int, stream: CudaStream) -> None:
    """Queue zeros over a stretch of the GPU's memory. Raises CudaError: it is not the GPU's."""
    if size_bytes:
        device.call("cuMemsetD8Async", target, 0, size_bytes, stream.handle)


def owner_of(device: CudaDevice, address: int) -> int | None:
    """Return the number of the GPU whose memory an address is in; None for the host's.

    Pinned memory of the host counts as ``device``'s: every GPU reaches it.
    """
    kinds = device.driver.api.CUpointer_attribute

    def read(kind: str) -> Any:
        attribute = getattr(kinds, f"CU_POINTER_ATTRIBUTE_{kind}")
        return device.call("cuPointerGetAttribute", attribute, address)

    try:
        read("DEVICE_ORDINAL")  # only whether there is one: cuda.bindings 13.3 always reads 0
    except CudaError:
        return None
    if int(read("MEMORY_TYPE")) != _ON_DEVICE:
        return device.index
    context = read("CONTEXT")
    if not int(context):  # memory of a pool has none
        return device.index
    previous = device.driver.call("cuCtxGetCurrent")
    device.driver.call("cuCtxSetCurrent", context)
    try:
        return int(device.driver.call("cuCtxGetDevice"))
    finally:
        device.driver.call("cuCtxSetCurrent", previous)
