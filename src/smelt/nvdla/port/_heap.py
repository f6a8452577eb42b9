"""Page allocator for an address range."""

from __future__ import annotations

import bisect
from typing import Final

from smelt.nvdla._status import NvdlaError, NvError

PAGE_BYTES: Final = 4096
"""Granularity of allocations in bytes."""


class PageHeap:
    """First-fit allocator of pages; adjacent free ranges are merged."""

    def __init__(self, base: int, size_bytes: int, name: str = "memory") -> None:
        """Start with all pages free.

        Args:
            base: First address of the range; only whole pages of the range are used.
            size_bytes: Size of the range in bytes.
            name: Name of the memory in messages.
        """
        start = -(-base // PAGE_BYTES) * PAGE_BYTES
        end = max(start, (base + size_bytes) // PAGE_BYTES * PAGE_BYTES)
        self._name = name
        self._free: list[tuple[int, int]] = [(start, end)] if end > start else []
        self._used: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        """Number of free bytes, which need not be contiguous."""
        return sum(end - start for start, end in self._free)

    def allocate(self, size_bytes: int) -> int:
        """Allocate contiguous pages for a number of bytes and return their address.

        Raises:
            NvdlaError: INSUFFICIENT_MEMORY if no free range is large enough.
        """
        needed = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        for index, (start, end) in enumerate(self._free):
            if end - start >= needed:
                if end - start == needed:
                    del self._free[index]
                else:
                    self._free[index] = (start + needed, end)
                self._used[start] = start + needed
                return start
        raise NvdlaError(
            NvError.INSUFFICIENT_MEMORY,
            f"cannot allocate {size_bytes} bytes of {self._name}: {self.free_bytes} are free, and "
            "no contiguous block is large enough",
        )

    def release(self, address: int) -> None:
        """Free the pages of an allocation.

        Raises:
            NvdlaError: BAD_PARAMETER if there is no allocation at the address.
        """
        end = self._used.pop(address, None)
        if end is None:
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"there is no allocation of {self._name} at {address:#x}"
            )
        index = bisect.bisect(self._free, (address, end))
        start = address
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end))
