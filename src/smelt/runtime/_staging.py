"""Staging buffers for small inputs and outputs in a context's own memory.

Reading the address of a numpy array takes longer than copying a few kilobytes. Small arrays are
therefore copied to and from buffers that never move; no address changes between runs then.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from smelt.types import bounds_of, symbols_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuAllocation, CpuMemory
    from smelt.engine import EngineHeader, Plan
    from smelt.runtime._plan_selection import ArrayShapes, ResolvedCall
    from smelt.types import Shape

STAGED_BYTES: Final = 16384
"""Largest array in bytes that is staged; larger ones are used in place."""
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class StagedCall:
    """A resolved call with the staging buffers of one context."""

    call: ResolvedCall
    staged_arrays: tuple[NDArray[Any] | None, ...]
    """Staging array of each binding; None if it is not staged."""
    addresses: list[int]
    """Addresses of the staging arrays, by binding; 0 if not staged. Read-only."""
    sizes: tuple[int, ...]
    """Bytes of each binding."""
    is_staged: bool
    """Whether every binding is staged."""
    inputs: tuple[tuple[int, NDArray[Any] | None], ...]
    """Binding index and staging array of each input."""
    outputs: tuple[tuple[int, NDArray[Any] | None], ...]
    """Binding index and staging array of each output."""


class Staging:
    """Staging buffers of one context."""

    def __init__(self, memory: CpuMemory | None, header: EngineHeader) -> None:
        """Allocate the staging buffers; with ``memory`` None, nothing is staged."""
        self._bindings = header.bindings
        self._capacities = [0] * len(header.bindings)
        self._starts = list(self._capacities)
        self._memory: CpuAllocation | None = None
        if memory is None:
            return
        input_symbols = symbols_of(*(dim for b in header.bindings if b.is_input for dim in b.shape))
        total = 0
        shapes = [plan.shapes(header.bindings) for plan in header.plans]
        rows = zip(header.bindings, *shapes, strict=True)
        for index, (binding, *binding_shapes) in enumerate(rows):
            # Data-dependent outputs may fill only a part of their buffer, so they are not staged.
            if symbols_of(*(dim for shape in binding_shapes for dim in shape)) <= input_symbols:
                count = max(map(_largest_count, binding_shapes, header.plans))
                self._capacities[index] = min(count * binding.dtype.size_bytes, STAGED_BYTES)
                self._starts[index] = total
                total += -(-self._capacities[index] // _ALIGNMENT) * _ALIGNMENT
        self._memory = memory.allocate(total, "bindings")

    @property
    def allocations(self) -> list[CpuAllocation]:
        """Allocations for the owner to release."""
        return [] if self._memory is None else [self._memory]

    def staged_call(self, call: ResolvedCall, shapes: ArrayShapes) -> StagedCall:
        """Return the call with staging arrays for small arrays whose shapes match exactly."""
        staged_arrays = tuple(map(self._staged_array, range(len(shapes)), shapes, call.shapes))
        base = 0 if self._memory is None else self._memory.address
        pairs = zip(staged_arrays, self._starts, strict=True)
        addresses = [0 if staged is None else base + start for staged, start in pairs]
        indexed = list(zip(enumerate(staged_arrays), self._bindings, strict=True))
        shaped = zip(call.shapes, self._bindings, strict=True)
        return StagedCall(
            call,
            staged_arrays,
            addresses,
            tuple(prod(shape) * binding.dtype.size_bytes for shape, binding in shaped),
            all(staged is not None for staged in staged_arrays),
            tuple(pair for pair, binding in indexed if binding.is_input),
            tuple(pair for pair, binding in indexed if not binding.is_input),
        )

    def _staged_array(
        self, index: int, shape: tuple[int, ...] | None, needed: tuple[int, ...]
    ) -> NDArray[Any] | None:
        dtype = self._bindings[index].dtype.numpy
        size = prod(needed) * dtype.itemsize
        if self._memory is None or shape != needed or not 0 < size <= self._capacities[index]:
            return None
        start = self._starts[index]
        memory = self._memory.bytes[start : start + size]
        # Another thread may have closed the context meanwhile; the run then refuses.
        return memory.view(dtype).reshape(needed) if memory.size == size else None


def _largest_count(shape: Shape, plan: Plan) -> int:
    """Return an upper bound of the number of elements over the plan's symbol ranges."""
    box = {name: (low, high) for name, low, high in plan.symbols}
    return prod(max(bounds_of(dim, box)[1], 0) for dim in shape)
