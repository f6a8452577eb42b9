"""Base classes and test cases of elementwise ops with two or more broadcasting inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import ClassVar

import numpy as np

from smelt.ir import Array, Case, Operand
from smelt.ops._base import Elementwise
from smelt.ops._conformance_data import HALF_TOLERANCE, corner_pairs
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import NUMBERS, broadcast_shapes, input_types, require_inputs
from smelt.ops._shape_operands import MAXIMUM_TERMS, known_dims, present, sample
from smelt.types import Dim, DType, TensorType, ValueType, override


class BroadcastingOp(Elementwise):
    """Elementwise op of one element type whose inputs broadcast to the shape of the result."""

    is_recipe_step = True

    arity: ClassVar[tuple[int, int]] = (2, 2)
    """Minimum and maximum number of inputs."""
    dtypes: ClassVar[frozenset[DType]] = NUMBERS
    """Element types of the inputs."""
    result_dtype: ClassVar[DType | None] = None
    """Element type of the result; None for that of the inputs."""
    case_dtypes: ClassVar[tuple[str, ...]] = (
        "float32", "float16", "float64", "int32", "int64", "uint8",
    )  # fmt: skip
    """Element types of the cases."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, *self.arity)
        kinds = input_types(self, inputs, len(inputs), dtypes=self.dtypes)
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
        if combined is None or isinstance(combined, int):
            return combined
        return combined if len(combined.terms) <= MAXIMUM_TERMS else None

    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        """Return the op on two elements that are dimensions; None if the result is not one."""
        del left, right
        return None

    def compute(self, left: Array, right: Array) -> Array:
        """Compute the op on two arrays; float16 and bfloat16 inputs are passed as float32.

        An op without attributes gives its ``function``; others override this method.
        """
        return np.asarray(type(self)._function(left, right))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        left, right = present(inputs, 0), present(inputs, 1)
        with np.errstate(all="ignore"):
            result = np.asarray(self.compute(widen(left), widen(right)))
        return (narrow(result, self.result_dtype.numpy if self.result_dtype else left.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), *cls.case_dtypes)


class Comparison(BroadcastingOp):
    """``BroadcastingOp`` that compares numbers."""

    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), *cls.case_dtypes, int_low=-2, int_high=3)
        left = np.array([np.nan, 1.0, np.inf, -0.0], np.float32)
        right = np.array([np.nan, np.nan, np.inf, 0.0], np.float32)
        yield Case("NaN, infinity and negative zero", cls(), (left, right))


class Logical(BroadcastingOp):
    """``BroadcastingOp`` on truth values."""

    dtypes: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})
    case_dtypes: ClassVar[tuple[str, ...]] = ("bool",)


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

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        dtypes = cls.case_dtypes
        yield from super().cases()
        yield Case("one input", cls(), (sample(2, 3, dtype=dtypes[0]),))
        three = ((2, 3, 4), (3, 1), (4,))
        yield Case("three inputs", cls(), tuple(sample(*s, dtype=dtypes[0]) for s in three))
        four = ((6,), (6,), (1,), ())
        yield Case("four inputs", cls(), tuple(sample(*s, dtype=dtypes[0]) for s in four))


def broadcast_cases(
    op: BroadcastingOp, *dtypes: str, int_low: int = -9, int_high: int = 10
) -> Iterator[Case]:
    """Yield cases of the ways in which two inputs can broadcast, and one for each dtype."""
    shapes = {
        "same shape": ((2, 3, 4), (2, 3, 4)),
        "one element for each channel": ((2, 3, 4, 5), (3, 1, 1)),
        "both sides broadcast": ((3, 1, 5), (1, 4, 1)),
        "scalar": ((2, 7), ()),
        "second input has more axes": ((5,), (2, 3, 5)),
        "no elements": ((0, 3), (1, 3)),
    }
    named = [(label, dtypes[0], *pair) for label, pair in shapes.items()]
    named += [(dtype, dtype, (3, 17), (3, 1)) for dtype in dtypes[1:]]
    for label, dtype, left, right in named:
        x = sample(*left, dtype=dtype, int_low=int_low, int_high=int_high)
        y = sample(*right, dtype=dtype, int_low=int_low, int_high=int_high - 1)
        yield Case(label, op, (x, y), HALF_TOLERANCE if dtype == "float16" else 1e-4)
    yield from corner_pairs(op, op.dtypes)
