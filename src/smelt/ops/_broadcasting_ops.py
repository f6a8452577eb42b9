"""Base classes and test cases of elementwise ops with two or more broadcasting inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._conformance_data import corner_pairs
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    NUMBERS,
    broadcast_shapes,
    input_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import MAXIMUM_TERMS, known_dims, present, sample
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class BroadcastingOp(Op):
    """Elementwise op of one element type whose inputs broadcast to the shape of the result."""

    arity: ClassVar[tuple[int, int]] = (2, 2)
    """Minimum and maximum number of inputs."""
    dtypes: ClassVar[frozenset[DType]] = NUMBERS
    """Element types of the inputs."""
    result_dtype: ClassVar[DType | None] = None
    """Element type of the result; None for that of the inputs."""

    _function: ClassVar[Any]  # annotations of ops are evaluated, and Array is for type checkers

    def __init_subclass__(cls, *, function: Callable[[Array, Array], Any] | None = None) -> None:
        """Set ``function``, which computes the op on two arrays; other ops override ``compute``."""
        super().__init_subclass__()
        if function is not None:
            cls._function = staticmethod(function)

    @property
    @override
    def elementwise(self) -> bool:
        return True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, *self.arity)
        kinds = [input_type(self, inputs, i) for i in range(len(inputs))]
        require_dtype(kinds[0], self.dtypes, f"input 0 of {self.name}")
        require_same_dtype(*kinds)
        shape = broadcast_shapes(*(k.shape for k in kinds))
        return (TensorType(self.result_dtype or kinds[0].dtype, shape),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        vectors = [known_dims(inputs, i) for i in range(len(inputs))]
        known = [v for v in vectors if v is not None]
        if len(known) < len(vectors) or not known:
            return None
        length = max(map(len, known)) if all(known) else 0
        if any(len(v) not in {1, length} for v in known):
            return None
        rows: list[list[Dim | None]] = [[v[i % len(v)] for v in known] for i in range(length)]
        combined = [reduce(self._combine_or_none, row) for row in rows]
        return tuple(d for d in combined if d is not None) if None not in combined else None

    def _combine_or_none(self, left: Dim | None, right: Dim | None) -> Dim | None:
        """Return `combine_dims` of two elements; None if unknown or if the result is too large."""
        if left is None or right is None:
            return None
        combined = self.combine_dims(left, right)
        too_large = (
            combined is not None
            and not isinstance(combined, int)
            and len(combined.terms) > MAXIMUM_TERMS
        )
        return None if too_large else combined

    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        """Return the op on two elements that are dimensions; None if the result is not one."""
        del left, right
        return None

    def compute(self, left: Array, right: Array) -> Array:
        """Compute the op on two arrays; float16 and bfloat16 inputs are passed as float32."""
        return np.asarray(type(self)._function(left, right))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        left, right = present(inputs, 0), present(inputs, 1)
        with np.errstate(all="ignore"):
            result = np.asarray(self.compute(widen(left), widen(right)))
        return (narrow(result, self.result_dtype.numpy if self.result_dtype else left.dtype),)


@dataclass(frozen=True)
class Variadic(BroadcastingOp):
    """``BroadcastingOp`` op of any number of inputs, which are combined from left to right."""

    arity: ClassVar[tuple[int, int]] = (1, 1 << 16)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [present(inputs, i) for i in range(len(inputs))]
        with np.errstate(all="ignore"):
            result = self.combine([widen(array) for array in arrays])
        return (np.array(narrow(result, arrays[0].dtype)),)

    def combine(self, arrays: Sequence[Array]) -> Array:
        """Compute the op on arrays; float16 and bfloat16 inputs are passed as float32."""
        return reduce(self.compute, arrays)


def broadcast_cases(
    op: BroadcastingOp, *dtypes: str, low: int = -9, high: int = 10
) -> Iterator[Case]:
    """Yield cases of the ways in which two inputs can broadcast, and one for each dtype."""
    shapes = {
        "same shape": ((2, 3, 4), (2, 3, 4)),
        "one for each channel": ((2, 3, 4, 5), (3, 1, 1)),
        "both sides broadcast": ((3, 1, 5), (1, 4, 1)),
        "scalar": ((2, 7), ()),
        "more axes on the right": ((5,), (2, 3, 5)),
        "no elements": ((0, 3), (1, 3)),
    }
    for label, (left, right) in shapes.items():
        yield Case(
            label,
            op,
            (
                sample(*left, dtype=dtypes[0], low=low, high=high),
                sample(*right, dtype=dtypes[0], low=low, high=high - 1),
            ),
        )
    for dtype in dtypes[1:]:
        pair = (
            sample(3, 17, dtype=dtype, low=low, high=high),
            sample(3, 1, dtype=dtype, low=low, high=high - 1),
        )
        tolerance = 3e-3 if dtype == "float16" else 1e-4
        yield Case(dtype, op, pair, tolerance)
    yield from corner_pairs(op, op.dtypes)


def variadic_cases(op: BroadcastingOp, *dtypes: str) -> Iterator[Case]:
    """Yield the cases of two inputs, and cases of one, three and four inputs."""
    yield from broadcast_cases(op, *dtypes)
    yield Case("one input", op, (sample(2, 3, dtype=dtypes[0]),))
    three = ((2, 3, 4), (3, 1), (4,))
    yield Case("three inputs", op, tuple(sample(*s, dtype=dtypes[0]) for s in three))
    four = ((6,), (6,), (1,), ())
    yield Case("four inputs", op, tuple(sample(*s, dtype=dtypes[0]) for s in four))
