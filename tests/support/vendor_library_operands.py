"""Operands of one call of a library, in the driver stub's memory, and the list that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.devices.cuda import CudaLaunch, CudaRunList, KernelLoader, call_to_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda import CudaDevice, LibraryCall

Array = np.ndarray[Any, Any]
_ALIGNED = 64
"""Elements: operands begin at multiples of so many."""
_ROOM_BYTES = 4096 + 256
"""As much as any call of the tests has as a workspace, and what it takes to begin it rightly."""


class CallOperands:
    """Random operands at round addresses, the result last; a workspace at none."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        """Make operands of these shapes, in float32."""
        rng = np.random.default_rng(0)
        memory = np.zeros(4096, np.float32)
        first = -int(memory.ctypes.data) // 4 % _ALIGNED
        self.parts: list[Array] = []
        for number, shape in enumerate(shapes):
            start = first + _ALIGNED * number
            part = memory[start : start + int(np.prod(shape))].reshape(shape)
            part[...] = rng.standard_normal(shape)
            self.parts.append(part)
        self.room = np.zeros(4 + _ROOM_BYTES, np.uint8)[4:]

    @property
    def words(self) -> list[int]:
        """Their addresses."""
        return [int(part.ctypes.data) for part in self.parts]

    @property
    def workspace(self) -> int:
        """The address of the room for a workspace."""
        return int(self.room.ctypes.data)


def rows_of(device: CudaDevice, call: LibraryCall, words: Sequence[int]) -> CudaRunList:
    """A list of nothing but a call, on operands at these addresses."""
    loaded = KernelLoader(device).load(call_to_bytes(call))
    return CudaRunList([CudaLaunch(loaded, len(words), 0)], np.array(words, np.int64), [1])
