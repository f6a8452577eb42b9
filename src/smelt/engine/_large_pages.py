"""Files in memory: mapped to be read, in pages of 2 MiB where the system has them."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final

_LARGE_PAGE_BYTES: Final = 1 << 21
_MADV_POPULATE_READ: Final = 22
"""Of Linux 5.14; Python has no name for it."""


def request_large_pages(number: int) -> None:
    """Have the system's cache hold a file that was just written in pages of 2 MiB where it can.

    Weights that stream from memory are found sooner so. What is written lies in small pages, and
    stays there; what is read for a mapping that asks for large ones does not. The system itself
    reads the mapping: where the file became shorter, it says so, and no signal ends the process.
    """
    size = os.fstat(number).st_size
    if size < _LARGE_PAGE_BYTES or not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError, ValueError):  # it is only advice
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        with map_file(number) as view:
            view.madvise(_MADV_POPULATE_READ)


def map_file(number: int) -> mmap.mmap:
    """Map an open file, to be read."""
    view = mmap.mmap(number, 0, access=mmap.ACCESS_READ)
    if len(view) >= _LARGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them says that it knows them not
            view.madvise(mmap.MADV_HUGEPAGE)
    return view
