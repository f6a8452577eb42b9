"""CPU memory: aligned allocations, and allocations between guard pages for tests."""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.devices.cpu._abi import ALIGNMENT_BYTES
from smelt.errors import DeviceError
from smelt.handler_errors import pass_on_handler_error, suppress_own

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.devices._base import AllocationTracker

_LARGE_PAGE_BYTES: Final = 1 << 21
"""Size of a large page; larger allocations are mapped and aligned to it."""
_PROT_NONE: Final = 0
_PROT_READ: Final = 1
_PROT_WRITE: Final = 2
_PROT_EXECUTE: Final = 4


class CpuAllocation:
    """CPU memory, 64-byte aligned; large allocations use large pages if the system has them.

    The initial content is undefined.
    """

    __slots__ = ("__weakref__", "_finalizer", "address", "bytes", "size_bytes", "tag")

    def __init__(
        self,
        storage: NDArray[np.uint8],
        start: int,
        size_bytes: int,
        tag: str,
        tracker: AllocationTracker | None,
    ) -> None:
        self.bytes = storage[start : start + size_bytes]
        self.address = int(storage.ctypes.data) + start  # numpy gives an empty slice no address
        self.size_bytes = size_bytes
        self.tag = tag
        self._finalizer: weakref.finalize[..., CpuAllocation] | None = None
        if tracker is not None:
            tracker.allocated(self.address, self.size_bytes, tag)
            self._finalizer = weakref.finalize(
                self, tracker.released, self.address, self.size_bytes, tag
            )

    def close(self) -> None:
        """Release the memory, which nothing may use any more. Idempotent."""
        self.bytes = np.empty(0, np.uint8)
        if self._finalizer is not None:
            self._finalizer()


class CpuMemory:
    """Allocates CPU memory and notifies the tracker, if there is one."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: AllocationTracker | None = None) -> None:
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return ``size_bytes`` of zeros for the purpose ``tag``.

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
        return CpuAllocation(storage, start, size_bytes, tag, self.tracker)


class GuardedMemory(CpuMemory):
    """Allocates between inaccessible guard pages, so that an overrun faults immediately.

    With ``at_end``, memory ends at a guard page apart from alignment; otherwise it starts directly
    behind one.
    """

    __slots__ = ("align", "at_end")

    def __init__(self, *, at_end: bool = True, align: int = ALIGNMENT_BYTES) -> None:
        super().__init__()
        self.at_end = at_end
        self.align = align

    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return ``size_bytes`` of memory with an inaccessible page on either side."""
        page = mmap.PAGESIZE
        rounded_bytes = -(-max(size_bytes, 1) // page) * page
        pages = map_pages(rounded_bytes + 2 * page)
        base = int(pages.ctypes.data)
        protect(base, page, readable=False)
        protect(base + page + rounded_bytes, page, readable=False)
        slack = (rounded_bytes - size_bytes) // self.align * self.align if self.at_end else 0
        return CpuAllocation(pages, page + slack, size_bytes, tag, None)


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
        number = ctypes.get_errno()
        raise DeviceError(
            f"the system refuses to change the protection of memory (errno {number}); "
            "a security policy may forbid generated code in this process"
        )
