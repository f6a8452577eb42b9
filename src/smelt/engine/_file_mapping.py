"""Read-only mappings of files, in pages of 2 MiB if the system supports them."""

from __future__ import annotations

import mmap
import os
from typing import Final

from smelt.signal_errors import suppress_own

_LARGE_PAGE_BYTES: Final = 1 << 21
_MADV_POPULATE_READ: Final = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python does not define."""


def request_large_pages(number: int) -> None:
    """Move the page cache of a file that was just written to large pages, if possible.

    Large pages reduce TLB misses when weights stream from memory. Written data stay in small pages;
    data that are read for a mapping with large pages do not. The kernel reads the mapping: if the
    file was truncated, it returns an error instead of sending a signal.
    """
    size = os.fstat(number).st_size
    if size < _LARGE_PAGE_BYTES or not hasattr(os, "posix_fadvise"):
        return
    with suppress_own(OSError, ValueError):  # optional: failure has no consequence
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        with map_file(number) as view:
            view.madvise(_MADV_POPULATE_READ)


def map_file(number: int) -> mmap.mmap:
    """Map an open file read-only."""
    view = mmap.mmap(number, 0, access=mmap.ACCESS_READ)
    if len(view) >= _LARGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress_own(OSError):  # not every system supports large pages
            view.madvise(mmap.MADV_HUGEPAGE)
    return view
