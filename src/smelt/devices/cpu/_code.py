"""Machine code, mapped: written once, then sealed."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from smelt.devices.cpu._memory import protect

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MappedCode:
    """An executable copy of a code image, which nobody can write any more.

    It is unmapped when it is forgotten, so whoever may call into it holds on to it.
    """

    __slots__ = ("_memory", "address", "size_bytes")

    def __init__(self, image: Buffer) -> None:
        """Map ``image``.

        Raises:
            DeviceError: the system refuses executable memory.
        """
        source = np.frombuffer(image, np.uint8)
        self.size_bytes = source.size
        room = -(-max(source.size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = np.frombuffer(mmap.mmap(-1, room), np.uint8)
        self._memory[: source.size] = source
        self.address = int(self._memory.ctypes.data)
        protect(self.address, room, executable=True)
