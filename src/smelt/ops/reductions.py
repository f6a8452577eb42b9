"""Reductions over axes, and the running sum along one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE
from smelt.ops._reference_numerics import divide_towards_zero, lowest, narrow, widen
from smelt.ops._shape import FLOATS, NUMBERS, input_types, normalize_axis, require_dtype, shape_text
from smelt.ops._shape_operands import (
    bounded,
    count_elements,
    input_at,
    ints_at,
    known_dims,
    present,
    sample,
)
from smelt.types import Dim, DType, TensorType, ValueType, override


class Reduction(BuiltinOp):
    """Reduction of the elements along some axes to one number.

    The axes are input 1. If it is absent or empty, all axes are reduced, or with
    ``noop_with_empty_axes`` none: each element is then reduced by itself.
    """

    is_recipe_step = True

    dtypes: ClassVar[frozenset[DType]] = NUMBERS
    """Element types of the input."""
    case_dtypes: ClassVar[tuple[str, ...]] = ("float16", "float64", "int32", "int64")
    """Element types of the cases besides float32."""
    case_low: ClassVar[int] = -9
    """Smallest element of the cases."""
    has_empty_case: ClassVar[bool] = True
    """Whether the cases include the reduction of no elements."""

    keepdims: int = 1
    """Whether the result keeps the reduced axes with extent 1."""
    noop_with_empty_axes: int = 0
    """Whether absent or empty axes mean that no axis is reduced instead of all."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1, 2)
        require_dtype(data, self.dtypes, f"input 0 of {self.name}")
        axes = self.axes(data.rank, ints_at(self, inputs, 1, "the axes"))
        kept = (1,) if self.keepdims else ()
        parts = (kept if i in axes else (d,) for i, d in enumerate(data.shape))
        return (TensorType(data.dtype, tuple(d for part in parts for d in part)),)

    def axes(self, rank: int, listed: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the reduced axes of a tensor of ``rank``, all non-negative. Raises ShapeError."""
        if not listed:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return tuple(sorted({normalize_axis(a, rank) for a in listed}))

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims = known_dims(inputs, 0)
        if dims is None or not self.axes(1, ints_at(self, inputs, 1, "the axes")):
            return dims
        reduced = self.reduce_dims(dims)
        return None if reduced is None else (bounded(reduced),)

    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        """Return the op on all elements of a vector; None if the result is not a dimension."""
        del dims
        return None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axes_input = present(inputs, 0), input_at(inputs, 1)
        listed = None if axes_input is None else tuple(int(a) for a in axes_input)
        axes = self.axes(data.ndim, listed)
        with np.errstate(all="ignore"):
            result = narrow(self.compute(widen(data), axes), data.dtype)
        return (result if self.keepdims else np.asarray(result.squeeze(axes)),)

    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        """Compute the op along the axes, which the result keeps with extent one.

        An op gives its ``function`` of data, axes and dtype; others override this method.
        """
        return np.asarray(type(self)._function(data, axes, data.dtype, keepdims=True))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one, low = frozenset({1}), cls.case_low
        rows: dict[str, tuple[int, list[int]]] = {
            "last axis": (1, [-1]),
            "inner axis": (1, [1]),
            "two axes": (0, [0, 2]),
            "space": (1, [2, 3]),
            "negative axes that are removed": (0, [-2, -1]),
            "empty axes": (1, []),
        }
        for label, (keepdims, axes) in rows.items():
            arrays = (sample(2, 3, 4, 5, int_low=low), np.array(axes, np.int64))
            yield Case(label, cls(keepdims), arrays, constants=one)
        yield Case("all axes", cls(), (sample(3, 17, int_low=low),))
        yield Case("to a scalar", cls(0), (sample(3, 2, int_low=low),))
        nothing = (sample(2, 3, int_low=low), np.array([], np.int64))
        yield Case("empty axes with noop_with_empty_axes", cls(1, 1), nothing, constants=one)
        yield Case("scalar", cls(), (sample(int_low=low),))
        if cls.has_empty_case:
            yield Case("of nothing", cls(0), (sample(2, 0), np.array([1])), constants=one)
        for dtype in cls.case_dtypes:
            arrays = (sample(3, 9, dtype=dtype, int_low=low), np.array([1]))
            tolerance = HALF_TOLERANCE if dtype == "float16" else 1e-4
            yield Case(dtype, cls(0), arrays, tolerance, constants=one)


class ReduceSum(Reduction, function=np.sum):
    """The sum along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceSum-13.
    """

    @override
    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        return sum(dims)


class ReduceMean(Reduction):
    """The mean along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are summed in float32. The mean of integers is rounded towards
    zero; the mean of no integers is 0.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceMean-18.
    """

    has_empty_case: ClassVar[bool] = False

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        count = int(np.prod([data.shape[a] for a in axes], dtype=np.int64))
        total = np.sum(data, axes, data.dtype, keepdims=True)
        if data.dtype.kind == "f":
            return np.asarray(total / np.asarray(count, data.dtype))
        wide = np.int64 if data.dtype.kind == "i" else np.uint64
        return divide_towards_zero(total.astype(wide), np.asarray(count, wide))


class ReduceProd(Reduction, function=np.prod):
    """The product along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceProd-18.
    """

    @override
    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        return count_elements(tuple(dims))


class ReduceExtreme(Reduction):
    """Reduction to the largest or smallest element, of which all element types have one."""

    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)
    case_dtypes: ClassVar[tuple[str, ...]] = (*Reduction.case_dtypes, "int8", "uint8", "bool")

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from super().cases()
        special = np.array([[np.nan, 1.0, np.inf], [-np.inf, 0.0, 2.0]], np.float32)
        yield Case("not a number", cls(), (special, np.array([1])), constants=frozenset({1}))


class ReduceMax(ReduceExtreme):
    """The largest element along axes; NaN if an element is NaN.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: any; the maximum of no elements is the smallest value of the type.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceMax-20.
    """

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.max(data, axis=axes, keepdims=True, initial=lowest(data.dtype)))


class ReduceMin(ReduceExtreme):
    """The smallest element along axes; NaN if an element is NaN.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: any; the minimum of no elements is the largest value of the type.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceMin-20.
    """

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        kind = data.dtype.kind
        if kind == "f":
            start: float = np.inf
        else:
            start = True if kind == "b" else np.iinfo(data.dtype).max
        return np.asarray(np.min(data, axis=axes, keepdims=True, initial=start))


class ReduceL1(Reduction):
    """The sum of absolute values along axes (L1 norm).

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceL1-18.
    """

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(np.abs(data), axes, data.dtype, keepdims=True)


class ReduceL2(Reduction):
    """The square root of the sum of squares along axes (L2 norm).

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceL2-18.
    """

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        wide = data.astype(np.float64) if data.dtype.kind in "iu" else data
        return np.asarray(np.sqrt(np.sum(wide * wide, axes, keepdims=True)))


class ReduceSumSquare(Reduction):
    """The sum of squares along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceSumSquare-18.
    """

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(data * data, axes, data.dtype, keepdims=True)


class ReduceLogSum(Reduction):
    """The logarithm of the sum along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: floats.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceLogSum-18.
    """

    dtypes: ClassVar[frozenset[DType]] = FLOATS
    case_dtypes: ClassVar[tuple[str, ...]] = ("float16", "float64")
    case_low: ClassVar[int] = 1

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.log(np.sum(data, axes, keepdims=True)))


class ReduceLogSumExp(Reduction):
    """The logarithm of the sum of exponentials along axes, without overflow.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: floats.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceLogSumExp-18.
    """

    dtypes: ClassVar[frozenset[DType]] = FLOATS
    case_dtypes: ClassVar[tuple[str, ...]] = ("float16", "float64")

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        peak = np.max(data, axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(peak), peak, 0).astype(data.dtype)
        return np.asarray(np.log(np.sum(np.exp(data - shift), axes, keepdims=True)) + shift)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from super().cases()
        large = np.array([[1000.0, 999.0], [-1000.0, -1001.0]], np.float32)
        yield Case("large numbers", cls(), (large, np.array([1])), constants=frozenset({1}))


class CumSum(BuiltinOp):
    """Cumulative sums along an axis.

    With ``reverse`` the sums start at the end of the axis; with ``exclusive`` each sum excludes the
    element itself.

    Shapes: (data, axis scalar) -> data's.

    Dtypes: numbers; the axis is int32 or int64.

    Raises ShapeError: when the axis is not known or out of range.

    Source: ONNX CumSum-14.
    """

    exclusive: int = 0
    """Whether each sum excludes the element itself."""
    reverse: int = 0
    """Whether the sums start at the end of the axis."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2)
        require_dtype(data, NUMBERS, "input 0 of cum_sum")
        axes = ints_at(self, inputs, 1, "the axis", allows_scalar=True) or ()
        if len(axes) != 1:
            raise ShapeError(f"the axis of cum_sum must be one number, not {shape_text(axes)}")
        normalize_axis(axes[0], data.rank)
        return (data,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axis = present(inputs, 0), int(present(inputs, 1).item())
        wide = widen(data)
        ordered = np.flip(wide, axis) if self.reverse else wide
        sums = np.cumsum(ordered, axis, dtype=wide.dtype)
        if self.exclusive and data.shape[axis]:
            sums = np.roll(sums, 1, axis)
            sums[(slice(None),) * (axis % data.ndim) + (0,)] = 0
        result = np.array(np.flip(sums, axis) if self.reverse else sums, order="C")
        return (narrow(result, data.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        for exclusive in (0, 1):
            for reverse in (0, 1):
                label = f"exclusive {exclusive}, reverse {reverse}"
                inputs = (sample(2, 5), np.array(1))
                yield Case(label, cls(exclusive, reverse), inputs, constants=one)
        yield Case("first axis", cls(), (sample(4, 3), np.array(0, np.int32)), constants=one)
        yield Case("negative axis", cls(1), (sample(2, 3, 4), np.array(-2)), constants=one)
        yield Case("no elements", cls(1), (sample(2, 0), np.array(1)), constants=one)
        for dtype in ("float64", "int64", "int32"):
            yield Case(dtype, cls(), (sample(7, dtype=dtype), np.array(0)), constants=one)
