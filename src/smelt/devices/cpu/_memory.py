"""Memory of the process: aligned allocations, and allocations between guard pages for tests."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import weakref
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.devices.cpu._abi import ALIGNMENT_BYTES
from smelt.errors import DeviceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.devices._base import AllocationTracker

_LARGE_PAGE_BYTES: Final = 1 << 21
_PROT_NONE: Final = 0
_PROT_READ: Final = 1
_PROT_WRITE: Final = 2
_PROT_EXECUTE: Final = 4


class CpuAllocation:
    """Memory of the process, 64-byte aligned; much of it in large pages where the system has them.

    Its first content is undefined.
    """

    __slots__ = ("__weakref__", "_finalizer", "address", "bytes", "size_bytes", "tag")

    def __init__(
        self,
        whole: NDArray[np.uint8],
        start: int,
        size_bytes: int,
        tag: str,
        tracker: AllocationTracker | None,
    ) -> None:
        self.bytes = whole[start : start + size_bytes]
        self.address = int(whole.ctypes.data) + start  # numpy gives an empty slice no address
        self.size_bytes = size_bytes
        self.tag = tag
        self._finalizer: weakref.finalize[..., CpuAllocation] | None = None
        if tracker is not None:
            tracker.allocated(self.address, self.size_bytes, tag)
            self._finalizer = weakref.finalize(
                self, tracker.released, self.address, self.size_bytes, tag
            )

    def close(self) -> None:
        """Give the memory back; again is harmless. Nothing may use it any more."""
        self.bytes = np.empty(0, np.uint8)
        if self._finalizer is not None:
            self._finalizer()


class CpuMemory:
    """Allocates memory of the process; tells a tracker if there is one."""

    __slots__ = ("tracker",)

    def __init__(self, tracker: AllocationTracker | None = None) -> None:
        self.tracker = tracker

    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return ``size_bytes`` of zeros for the purpose ``tag``.

        Of much memory the system gives pages when they are first touched: what a plan for large
        shapes might need costs nothing where shapes are small.

        Raises:
            DeviceError: there is not so much.
        """
        align = ALIGNMENT_BYTES if size_bytes < _LARGE_PAGE_BYTES else _LARGE_PAGE_BYTES
        try:
            whole = (
                np.zeros(size_bytes + align, np.uint8)
                if size_bytes < _LARGE_PAGE_BYTES
                else map_pages(size_bytes + align, large=True)
            )
        except (MemoryError, ValueError, DeviceError) as error:
            raise DeviceError(
                f"{tag}: {size_bytes} bytes of memory cannot be allocated; use a smaller batch or "
                "fewer contexts at a time"
            ) from error
        start = -int(whole.ctypes.data) % align
        return CpuAllocation(whole, start, size_bytes, tag, self.tracker)


class GuardedMemory(CpuMemory):
    """Allocates between pages that nobody may touch: an overrun dies where it happens.

    Memory ends at the guard page, but for the bytes that alignment costs (``at_end``), or starts
    right behind one.
    """

    __slots__ = ("align", "at_end")

    def __init__(self, *, at_end: bool = True, align: int = ALIGNMENT_BYTES) -> None:
        super().__init__()
        self.at_end = at_end
        self.align = align

    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return ``size_bytes`` of memory with an inaccessible page on either side."""
        page = mmap.PAGESIZE
        room = -(-max(size_bytes, 1) // page) * page
        whole = map_pages(room + 2 * page)
        base = int(whole.ctypes.data)
        protect(base, page, readable=False)
        protect(base + page + room, page, readable=False)
        slack = (room - size_bytes) // self.align * self.align if self.at_end else 0
        return CpuAllocation(whole, page + slack, size_bytes, tag, None)


def map_pages(size_bytes: int, *, large: bool = False) -> NDArray[np.uint8]:
    """Return whole pages of zeros, this process's alone; they live as long as an array does.

    Args:
        size_bytes: how many bytes.
        large: whether to ask for large pages: what streams through them is found sooner.

    Raises:
        DeviceError: there is not so much memory.
    """
    try:
        if sys.platform == "win32":
            return np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, size_bytes, flags=private)
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(f"{size_bytes} bytes of memory cannot be mapped: {error}") from error
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them says that it knows them not
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
    """Change what may be done with whole pages.

    Raises:
        DeviceError: the system does not allow it.
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
