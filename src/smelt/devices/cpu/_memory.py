"""CPU memory: aligned allocations, mapped pages and their protection."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.devices._allocations import CpuAllocation
from smelt.devices.cpu._abi import ALIGNMENT_BYTES
from smelt.errors import DeviceError
from smelt.signal_errors import pass_on_handler_error, suppress_own

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.devices._allocations import AllocationTracker

_LARGE_PAGE_BYTES: Final = 1 << 21
"""Size of a large page; larger allocations are mapped and aligned to it."""
_PROT_READ: Final = 1
_PROT_WRITE: Final = 2
_PROT_EXECUTE: Final = 4


class CpuMemory:
    """Allocates CPU memory and notifies the tracker, if there is one."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: AllocationTracker | None = None) -> None:
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return ``size_bytes`` of zeros, 64-byte aligned, for the purpose ``tag``.

        Large allocations use large pages if the system has them.
        The system provides pages of large allocations at the first access, so memory for the
        largest shapes of a plan costs nothing while shapes are small.

        Raises:
            DeviceError: memory is insufficient.
        """
        align = ALIGNMENT_BYTES if size_bytes < _LARGE_PAGE_BYTES else _LARGE_PAGE_BYTES
        try:
            storage = (
                np.zeros(size_bytes + align, np.uint8)
                if size_bytes < _LARGE_PAGE_BYTES
                else map_pages(size_bytes + align, large=True)
            )
        except (MemoryError, ValueError, DeviceError) as error:
            pass_on_handler_error(error)
            raise DeviceError(
                f"{tag}: {size_bytes} bytes of memory cannot be allocated; use a smaller batch or "
                "fewer contexts at a time"
            ) from error
        start = -int(storage.ctypes.data) % align
        address = int(storage.ctypes.data) + start  # numpy gives an empty slice no address
        content = storage[start : start + size_bytes]
        return CpuAllocation(content, address, size_bytes, tag, self.tracker)


def map_pages(size_bytes: int, *, large: bool = False) -> NDArray[np.uint8]:
    """Map private pages of zeros; they are unmapped when no array refers to them.

    Args:
        size_bytes: size in bytes.
        large: whether to request large pages, which reduce TLB misses of streamed data.

    Raises:
        DeviceError: memory is insufficient.
    """
    try:
        if sys.platform == "win32":
            return np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, size_bytes, flags=private)
    except (OSError, ValueError, OverflowError) as error:
        pass_on_handler_error(error)
        raise DeviceError(f"{size_bytes} bytes of memory cannot be mapped: {error}") from error
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress_own(OSError):  # not every system supports large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def protect(
    address: int,
    size_bytes: int,
    *,
    readable: bool = True,
    writable: bool = False,
    executable: bool = False,
) -> None:
    """Change the access permissions of pages.

    Raises:
        DeviceError: the system does not permit the change.
    """
    if sys.platform == "win32":
        raise DeviceError("machine code cannot be mapped on Windows yet; use Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _PROT_READ * readable | _PROT_WRITE * writable | _PROT_EXECUTE * executable
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), flags):
        cause = os.strerror(ctypes.get_errno())
        raise DeviceError(
            f"the system refuses to change the protection of memory ({cause}); "
            "a security policy may forbid generated code in this process"
        )
