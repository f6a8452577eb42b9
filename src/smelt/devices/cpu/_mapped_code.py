"""Executable memory for machine code: written once, then read-only."""

from __future__ import annotations

import mmap

import numpy as np

from smelt.devices.cpu._memory import map_pages, protect


class MappedCode:
    """An executable, read-only copy of a code image.

    It is unmapped when garbage-collected, so callers of the code must keep a reference.
    """

    __slots__ = ("_memory", "address", "size_bytes")

    def __init__(self, image: bytes) -> None:
        """Map ``image``.

        Raises:
            DeviceError: the system does not permit executable memory.
        """
        source = np.frombuffer(image, np.uint8)
        self.size_bytes = source.size
        mapped_bytes = -(-max(source.size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = map_pages(mapped_bytes)
        self._memory[: source.size] = source
        self.address = int(self._memory.ctypes.data)
        protect(self.address, mapped_bytes, executable=True)
