"""Memory between guard pages: an overrun of a kernel faults immediately."""

from __future__ import annotations

import mmap

from smelt.devices.cpu import CpuAllocation, CpuMemory, abi, map_pages, protect
from smelt.types import override


class GuardedMemory(CpuMemory):
    """Allocates between inaccessible guard pages, so that an overrun faults immediately.

    With ``at_end``, memory ends at a guard page apart from alignment; otherwise it starts directly
    behind one.
    """

    __slots__ = ("align", "at_end")

    def __init__(self, *, at_end: bool = True, align: int = abi.ALIGNMENT_BYTES) -> None:
        super().__init__()
        self.at_end = at_end
        self.align = align

    @override
    def allocate(self, size_bytes: int, tag: str) -> CpuAllocation:
        """Return ``size_bytes`` of memory with an inaccessible page on either side."""
        page = mmap.PAGESIZE
        rounded_bytes = -(-max(size_bytes, 1) // page) * page
        pages = map_pages(rounded_bytes + 2 * page)
        base = int(pages.ctypes.data)
        protect(base, page, readable=False)
        protect(base + page + rounded_bytes, page, readable=False)
        slack = (rounded_bytes - size_bytes) // self.align * self.align if self.at_end else 0
        start = page + slack
        content = pages[start : start + size_bytes]
        return CpuAllocation(content, base + start, size_bytes, tag, None)
