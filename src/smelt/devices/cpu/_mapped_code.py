"""Machine code, mapped: written once, then sealed."""

from __future__ import annotations

import mmap

import numpy as np

from smelt.devices.cpu._memory import map_pages, protect


class MappedCode:
    """An executable copy of a code image, which nobody can write any more.

    It is unmapped when it is forgotten, so whoever may call into it holds on to it.
    """

    __slots__ = ("_memory", "address", "size_bytes")

    def __init__(self, image: bytes) -> None:
        """Map ``image``.

        Raises:
            DeviceError: the system refuses executable memory.
        """
        source = np.frombuffer(image, np.uint8)
        self.size_bytes = source.size
        room = -(-max(source.size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = map_pages(room)
        self._memory[: source.size] = source
        self.address = int(self._memory.ctypes.data)
        protect(self.address, room, executable=True)
