"""Indices, lengths and tables that no honest model has, for kernels that must stay inside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import ops
from smelt.ops._shape_operands import sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Case, Op
    from tests.support.trials import Trial

Array = np.ndarray[Any, Any]

EXTENT: Final = 5
"""Of the axis that the indices of every `Picking` are of, and of no other."""
POSITION: Final = {"gather": 1, "gather_elements": 1, "gru": 4, "lstm": 4}
"""Which input of an op with kernels for GPUs names places."""
_BYTES: Final = (0x7F, 0x80, 0xFF)
"""Of which tables consist: far behind, far before, and just before all elements."""


@dataclass(frozen=True, slots=True)
class Picking:
    """An op on indices that are all in range."""

    name: str
    op: Op
    arrays: tuple[Array, ...]
    fixed: frozenset[tuple[int, int]] = frozenset()
    """Input and axis of extents that cannot be symbols."""

    @property
    def symbols(self) -> dict[tuple[int, int], str]:
        """A symbol for each extent, by input and axis; equal extents have one."""
        return {
            (number, axis): f"n{extent}"
            for number, array in enumerate(self.arrays)
            for axis, extent in enumerate(array.shape)
            if (number, axis) not in self.fixed
        }

    def with_index(self, index: int) -> tuple[Array, ...]:
        """The arrays with another index in the last place."""
        indices = self.arrays[1].copy()
        indices.flat[-1] = index
        return (self.arrays[0], indices, *self.arrays[2:])

    def without_elements(self) -> tuple[Array, ...]:
        """The arrays with an axis that has no place for any index."""
        data = self.arrays[0]
        shape = tuple(0 if extent == EXTENT else extent for extent in data.shape)
        return (np.zeros(shape, data.dtype), *self.arrays[1:])


def pickings(dtype: str) -> Iterator[Picking]:
    """Every op whose kernels compute addresses from indices, by each of their ways."""

    def indices(*shape: int) -> Array:
        return sample(*shape, dtype=dtype, int_low=-EXTENT, int_high=EXTENT)

    vectors = frozenset({(1, 1)})
    deep = frozenset({(1, 2)})
    yield Picking("rows", ops.Gather(), (sample(5, 3), indices(4)))
    yield Picking("columns", ops.Gather(-1), (sample(3, 5), indices(2, 2)))
    yield Picking("elements down", ops.GatherElements(0), (sample(5, 3), indices(2, 3)))
    yield Picking("elements across", ops.GatherElements(1), (sample(3, 5), indices(3, 7)))
    yield Picking("slices", ops.GatherND(), (sample(5, 3), indices(4, 1)), vectors)
    yield Picking("in batches", ops.GatherND(1), (sample(2, 5, 3), indices(2, 4, 1)), deep)
    put = (sample(3, 5), indices(3, 2), sample(3, 2))
    yield Picking("put elements", ops.ScatterElements(1), put)
    yield Picking("add elements", ops.ScatterElements(1, "add"), put)
    yield Picking(
        "put slices", ops.ScatterND(), (sample(5, 3), indices(2, 1), sample(2, 3)), vectors
    )


def out_of_range(dtype: str, extent: int = EXTENT) -> list[int]:
    """Indices that are outside an axis: nearly, and by far."""
    limits = np.iinfo(dtype)
    return [extent, -extent - 1, 10**9, int(limits.min), int(limits.max)]


def has_places(case: Case) -> bool:
    """Whether one of the case's inputs names places, and is not constant."""
    position = POSITION[case.op.name]
    named = case.inputs[position] if position < len(case.inputs) else None
    return named is not None and bool(named.size) and position not in case.constants


def with_hostile_input(trial: Trial) -> Iterator[list[Array]]:
    """The inputs of a trial of such a case with indices, or lengths, out of range."""
    name = f"x{POSITION[trial.case.op.name]}"
    given = trial.arrays[name]
    for value in out_of_range(given.dtype.name, 10**8):
        hostile = given.copy()
        hostile.flat[-1] = value
        yield [hostile if other == name else array for other, array in trial.arrays.items()]


def with_hostile_weights(trial: Trial) -> Iterator[Trial]:
    """The trial with weights that lead nowhere: those of a Resize are its tables."""
    for byte in _BYTES:
        weights: Any = _Weights(byte, trial.weights.size_bytes)
        yield replace(trial, weights=weights)


@dataclass(frozen=True, slots=True)
class _Weights:
    byte: int
    size_bytes: int

    def data(self) -> Array:
        """All bytes the same."""
        return np.full(self.size_bytes, self.byte, np.uint8)
