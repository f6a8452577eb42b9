"""Elementwise arithmetic of two or more broadcasting tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._broadcasting_ops import BroadcastingOp, Variadic, broadcast_cases
from smelt.ops._reference_numerics import divide_towards_zero, truncate
from smelt.ops._shape import (
    FLOATS,
    NUMBERS,
    broadcast_shapes,
    input_type,
    input_types,
    require_dtype,
)
from smelt.ops._shape_operands import MAXIMUM_TERMS, divide_dims, sample
from smelt.types import TensorType, assume_at_least, element_count, is_never_negative, override

if TYPE_CHECKING:
    from smelt.types import Dim, DType, ValueType


class Add(BroadcastingOp, function=np.add):
    """The sum of two tensors.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; integers wrap around.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Add-14.
    """

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        return left + right


class Sub(BroadcastingOp, function=np.subtract):
    """The difference of two tensors.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; integers wrap around.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Sub-14.
    """

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        return left - right


class Mul(BroadcastingOp, function=np.multiply):
    """The product of two tensors.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; integers wrap around.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Mul-14.
    """

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        terms = [1 if isinstance(d, int) else len(d.terms) for d in (left, right)]
        return left * right if terms[0] * terms[1] <= MAXIMUM_TERMS else None


_CORNER_DIVISIONS = (np.array([[-128], [7], [0]], np.int8), np.array([0, -1], np.int8))
"""Dividends and divisors of which a quotient is undefined or overflows."""


class Div(BroadcastingOp):
    """The quotient of two tensors; quotients of integers are rounded towards zero.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; an integer divided by zero gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Div-14.
    """

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        if isinstance(left, int) and isinstance(right, int):
            magnitude = abs(left) // abs(right) if right else 0
            return magnitude if (left < 0) == (right < 0) else -magnitude
        if isinstance(right, int):
            # Floor division equals rounding towards zero only for a dividend of at least 0.
            if right <= 0 or not is_never_negative(left, least=1):
                return None
            assume_at_least(left, 0, "the dividend")
            return left // right
        # A quotient by zero is 0, so the divisor must be at least 1 for this formula.
        quotient = divide_dims(left, right) if is_never_negative(right, least=1) else None
        if quotient:
            assume_at_least(right, 1, "the divisor")
        return quotient

    @override
    def compute(self, left: Array, right: Array) -> Array:
        if left.dtype.kind == "f":
            return np.divide(left, right)
        return divide_towards_zero(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "float32", "float16", "float64", int_low=2, int_high=12)
        left = np.array([7, -7, 7, -7, 0, 6, -1], np.int32)
        right = np.array([2, 2, -2, -2, 5, 3, 2], np.int32)
        for dtype in ("int32", "int64", "int8"):
            yield Case(f"{dtype} towards zero", cls(), (left.astype(dtype), right.astype(dtype)))
        rows = np.array([[255, 7], [9, 0]], np.uint8)
        yield Case("uint8", cls(), (rows, np.array([2], np.uint8)))
        yield Case("by zero and by minus one", cls(), _CORNER_DIVISIONS)
        zeros = np.array([1.0, -1.0, 0.5], np.float32), np.array([0.0, 0.0, 2.0], np.float32)
        yield Case("floats divided by zero", cls(), zeros)
        huge = np.array([3e38, 1e38, 5e37], np.float32), np.array([2e38, 2e38, 3e38], np.float32)
        yield Case("huge divisors", cls(), huge)


_REMAINDER_OPERATIONS: Final = 1024
"""Operations in the time of a remainder of floats whose exponents are far apart: some 1 us."""


class Mod(BroadcastingOp):
    """The remainder of a division, with the sign of the divisor; with ``fmod``, of the dividend.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; floats need ``fmod``; an integer modulo zero gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Mod-13.
    """

    is_recipe_step = False

    fmod: int = 0
    """Whether the remainder has the sign of the dividend, as in C."""

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        kinds = [kind for kind in results if isinstance(kind, TensorType) and kind.dtype.is_float]
        return _REMAINDER_OPERATIONS * sum((element_count(kind.shape) for kind in kinds), 0)

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        if self.fmod or not isinstance(right, int) or right <= 0:
            return None
        return left - left // right * right

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.fmod(left, right) if self.fmod else np.mod(left, right)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        result = super().infer(inputs)
        if input_type(self, inputs, 0).dtype.is_float and not self.fmod:
            raise ShapeError("mod of floating-point inputs must have fmod=1")
        return result

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "int32", "int64", "int8", int_low=-9, int_high=0)
        for case in broadcast_cases(cls(fmod=1), "float32", "float64", int_low=1, int_high=12):
            yield replace(case, name=f"{case.name}, fmod")
        signs = np.array([7, -7, 7, -7, 6], np.int64), np.array([3, 3, -3, -3, 3], np.int64)
        yield Case("sign of the divisor", cls(), signs)
        yield Case("sign of the dividend", cls(fmod=1), signs)
        floats = np.array([7.5, -7.5, 7.5], np.float32), np.array([2.0, 2.0, -2.0], np.float32)
        yield Case("floats", cls(fmod=1), floats)
        yield Case("by zero and by minus one", cls(), _CORNER_DIVISIONS)
        yield Case("uint8", cls(), (np.array([250, 9], np.uint8), np.array([7], np.uint8)))


class Pow(BroadcastingOp):
    """The first tensor to the power of the second.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the exponent may have another type than the base, and the result has the
    type of the base. Powers of integers wrap around; those with a magnitude below 1 are 0.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Pow-15.
    """

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        base, exponent = input_types(self, inputs, 2)
        for kind, what in ((base, "the base"), (exponent, "the exponent")):
            require_dtype(kind, NUMBERS, f"{what} of {self.name}")
        return (TensorType(base.dtype, broadcast_shapes(base.shape, exponent.shape)),)

    @override
    def compute(self, left: Array, right: Array) -> Array:
        if left.dtype.kind == "f":
            # numpy computes a square root for the exponent 0.5, which differs for -0 and -infinity.
            unsigned = (right == 0.5) & ((left == 0) | np.isinf(left))
            return np.power(np.where(unsigned, np.abs(left), left), right)
        if right.dtype.kind == "f":
            return truncate(np.power(left.astype(np.float64), right), left.dtype)
        return _power_of_integers(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "float32", "float16", "float64", int_low=1, int_high=12)
        for base, exponent in (("int32", "int32"), ("float32", "int64"), ("int64", "float32")):
            x = sample(3, 5, dtype=base, int_low=1, int_high=9)
            y = sample(5, dtype=exponent, int_low=1, int_high=4)
            yield Case(f"{base} to the {exponent}", cls(), (x, y))
        corners = np.array([0.0, 0.0, -2.0, -2.0, 1.0, 4.0], np.float32)
        exponents = np.array([0.0, 3.0, 2.0, 3.0, -5.0, 0.5], np.float32)
        yield Case("corners", cls(), (corners, exponents))
        special = np.array([0, -0.0, 1, -1, 2.5, -2, np.inf, -np.inf, np.nan], np.float32)
        exponents = np.array([0, 2, -3, 0.5, -1.5, np.inf, -np.inf, np.nan], np.float32)
        yield Case("whatever to whatever", cls(), (special[:, None], exponents))


def _power_of_integers(base: Array, exponent: Array) -> Array:
    """Return powers of integers with wrap-around; negative exponents give 0, 1 or -1."""
    counts = np.maximum(exponent, 0).astype(np.uint64)
    power = np.power(base.astype(np.uint64), counts).astype(base.dtype)
    sign = np.where(exponent % 2 == 1, base, np.ones_like(base))
    inverse = np.where(np.isin(base, (-1, 1)), sign, np.zeros_like(base))
    return np.where(exponent < 0, inverse.astype(base.dtype), power)


def _ordered(left: Dim, right: Dim) -> tuple[Dim, Dim] | None:
    """Return the smaller and the larger of two elements, or None if that is not known."""
    for smaller, larger in ((right, left), (left, right)):
        if is_never_negative(larger - smaller, least=1):
            assume_at_least(
                larger, smaller, "the input assumed larger and the input assumed smaller"
            )
            return smaller, larger
    return None


class Max(Variadic, function=np.maximum):
    """The largest of the inputs, element by element; NaN if one is NaN.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Max-13.
    """

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        ordered = _ordered(left, right)
        return None if ordered is None else ordered[1]


class Min(Variadic, function=np.minimum):
    """The smallest of the inputs, element by element; NaN if one is NaN.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Min-13.
    """

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        ordered = _ordered(left, right)
        return None if ordered is None else ordered[0]


class Sum(Variadic, function=np.add):
    """The sum of the inputs, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Sum-13.
    """

    case_dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "float64")

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        return left + right


class Mean(Variadic):
    """The mean of the inputs, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: floats.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Mean-13.
    """

    dtypes: ClassVar[frozenset[DType]] = FLOATS
    case_dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "float64")

    @override
    def combine(self, arrays: Sequence[Array]) -> Array:
        total: Array = reduce(add, arrays)
        return total / len(arrays)
