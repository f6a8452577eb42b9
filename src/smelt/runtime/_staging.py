"""Places for small inputs and outputs in a context's own memory.

numpy takes longer to say where an array lies than to copy a few kilobytes. So small arrays are
copied to and from places that never move, and then no address is written from run to run either.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from smelt.types import bounds_of, symbols_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.devices.cpu import CpuAllocation, CpuMemory
    from smelt.engine import EngineHeader, Plan
    from smelt.runtime._plan_selection import ResolvedCall
    from smelt.types import Shape

STAGED_BYTES: Final = 16384
"""Larger arrays are read and written where they are."""
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class StagedCall:
    """A call on the memory of one context."""

    call: ResolvedCall
    staged_arrays: tuple[NDArray[Any] | None, ...]
    """Of each binding that is small."""
    addresses: list[int]
    """Of the places, by binding; 0 where there is none. Nobody writes here."""
    sizes: tuple[int, ...]
    """Bytes of each binding."""
    is_staged: bool
    """Whether every binding has a place."""
    inputs: tuple[tuple[int, NDArray[Any] | None], ...]
    """Binding and place of each input."""
    outputs: tuple[tuple[int, NDArray[Any] | None], ...]
    """The same of each output."""


class Staging:
    """The places of one context."""

    def __init__(self, memory: CpuMemory | None, header: EngineHeader) -> None:
        """Take memory for them; without memory there are none."""
        self._bindings = header.bindings
        self._capacities = [0] * len(header.bindings)
        self._starts = list(self._capacities)
        self._memory: CpuAllocation | None = None
        if memory is None:
            return
        given = symbols_of(*(dim for b in header.bindings if b.is_input for dim in b.shape))
        total = 0
        shapes = [plan.shapes(header.bindings) for plan in header.plans]
        for index, (binding, *own) in enumerate(zip(header.bindings, *shapes, strict=True)):
            # What a run itself decides may fill a part.
            if symbols_of(*(dim for shape in own for dim in shape)) <= given:
                largest = max(map(_largest_count, own, header.plans)) * binding.dtype.size_bytes
                self._capacities[index] = min(largest, STAGED_BYTES)
                self._starts[index] = total
                total += -(-self._capacities[index] // _ALIGNMENT) * _ALIGNMENT
        self._memory = memory.allocate(total, "bindings")

    @property
    def allocations(self) -> list[CpuAllocation]:
        """The memory, for whoever gives it back."""
        return [] if self._memory is None else [self._memory]

    def ready(self, call: ResolvedCall, shapes: Sequence[tuple[int, ...] | None]) -> StagedCall:
        """The call with places for small arrays that have just the shapes that it needs."""
        staged_arrays = tuple(map(self._staged_array, range(len(shapes)), shapes, call.shapes))
        base = 0 if self._memory is None else self._memory.address
        pairs = zip(staged_arrays, self._starts, strict=True)
        addresses = [0 if staged is None else base + start for staged, start in pairs]
        chosen = list(zip(enumerate(staged_arrays), self._bindings, strict=True))
        return StagedCall(
            call,
            staged_arrays,
            addresses,
            tuple(
                prod(shape) * b.dtype.size_bytes
                for shape, b in zip(call.shapes, self._bindings, strict=True)
            ),
            all(staged is not None for staged in staged_arrays),
            tuple(pair for pair, binding in chosen if binding.is_input),
            tuple(pair for pair, binding in chosen if not binding.is_input),
        )

    def _staged_array(
        self, index: int, shape: tuple[int, ...] | None, needed: tuple[int, ...]
    ) -> NDArray[Any] | None:
        dtype = self._bindings[index].dtype.numpy
        size = prod(needed) * dtype.itemsize
        if self._memory is None or shape != needed or not 0 < size <= self._capacities[index]:
            return None
        start = self._starts[index]
        return self._memory.bytes[start : start + size].view(dtype).reshape(needed)


def _largest_count(shape: Shape, plan: Plan) -> int:
    """Most elements; an extent may be largest anywhere between the ends of the plan's ranges."""
    box = {name: (low, high) for name, low, high in plan.symbols}
    return prod(max(bounds_of(dim, box)[1], 0) for dim in shape)
