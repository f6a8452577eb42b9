"""Memory of a context, and the access of host steps to it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from smelt.engine import Space
from smelt.types import evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smelt.engine import Buffer, Plan, View


@dataclass(slots=True)
class MemoryMap:
    """Base addresses of a context's memory."""

    arena: int
    weights: int
    errors: int = 0
    """Address of the error words; 0 if there are none."""
    addresses: list[int] = field(default_factory=list[int])
    """Addresses of the application's arrays, by binding; each run sets another list."""

    def start(self, buffer: Buffer) -> int:
        """Return the address of a buffer of the arena, the weights or a binding."""
        if buffer.space is Space.ARENA:
            return self.arena + buffer.start
        if buffer.space is Space.WEIGHTS:
            return self.weights + buffer.start
        return self.addresses[buffer.start]


class MemoryAccessor(Protocol):
    """Access of host steps to the memory of a plan."""

    def load(self, space: Space, address: int, size_bytes: int) -> Any:
        """Return the bytes at an address, as an object with a writable buffer."""
        ...

    def allocate(self, space: Space, address: int, size_bytes: int) -> Any:
        """Return bytes like `load`, all of which are written before they are stored."""
        ...

    def store(self, address: int, data: Any) -> None:
        """Write back bytes that were loaded from an address and changed."""
        ...


class HostMemoryAccessor:
    """Access to the memory of the process, which is changed in place."""

    def load(self, space: Space, address: int, size_bytes: int) -> Any:
        """Return the memory itself."""
        del space
        return memoryview((ctypes.c_uint8 * size_bytes).from_address(address))

    def allocate(self, space: Space, address: int, size_bytes: int) -> Any:
        """Return the memory itself."""
        return self.load(space, address, size_bytes)

    def store(self, address: int, data: Any) -> None:
        """Do nothing: the memory was changed in place."""


@dataclass(frozen=True, slots=True)
class HostStepOperand:
    """An operand of a host step."""

    array: NDArray[Any]
    """The elements, in the memory itself or in a copy."""
    address: int
    """Address of the first byte of the footprint; 0 for an operand without elements."""
    data: Any
    """The bytes of the footprint, as an object with a writable buffer."""


@dataclass(frozen=True, slots=True)
class HostStepMemory:
    """Access to the operands of a plan's host steps."""

    plan: Plan
    access: MemoryAccessor

    def load(
        self,
        view: View,
        values: Mapping[str, int],
        memories: MemoryMap,
        *,
        is_overwritten: bool = False,
    ) -> HostStepOperand:
        """Return the elements of a view, which are arbitrary if all of them are overwritten."""
        buffer = self.plan.buffers[view.buffer]
        start = memories.start(buffer)
        shape = [evaluate_dim(extent, values) for extent in view.shape]
        dtype = view.dtype.numpy
        if 0 in shape:
            return HostStepOperand(np.empty(shape, dtype), 0, b"")
        low, high = view.footprint(values)
        strides = [evaluate_dim(stride, values) * dtype.itemsize for stride in view.strides]
        read = self.access.allocate if is_overwritten else self.access.load
        data = read(buffer.space, start + low, high - low)
        offset = evaluate_dim(view.offset, values) - low
        return HostStepOperand(np.ndarray(shape, dtype, data, offset, strides), start + low, data)

    def store(self, operand: HostStepOperand) -> None:
        """Write an operand back whose elements were changed."""
        self.access.store(operand.address, operand.data)
