"""Reductions over axes, and the running sum along one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._reference_numerics import divide_towards_zero, lowest, narrow, widen
from smelt.ops._shape import (
    FLOATS,
    NUMBERS,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
    shape_text,
)
from smelt.ops._shape_operands import (
    bounded,
    count_elements,
    ints_at,
    known_dims,
    optional_array,
    present,
    sample,
)
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Reduction(Op):
    """Reduction of the elements along some axes to one number.

    The axes are input 1. If it is absent or empty, all axes are reduced, or with
    ``noop_with_empty_axes`` none: each element is then reduced by itself.
    """

    dtypes: ClassVar[frozenset[DType]] = NUMBERS
    """Element types of the input."""

    keepdims: int = 1
    noop_with_empty_axes: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 2)
        data = input_type(self, inputs, 0)
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
        data, axes_input = present(inputs, 0), optional_array(inputs, 1)
        listed = None if axes_input is None else tuple(int(a) for a in axes_input)
        axes = self.axes(data.ndim, listed)
        with np.errstate(all="ignore"):
            result = narrow(self.compute(widen(data), axes), data.dtype)
        return (result if self.keepdims else np.asarray(result.squeeze(axes)),)

    @abstractmethod
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        """Compute the op along the axes, which the result keeps with extent one."""


def reduce_cases(
    make: Callable[..., Reduction], *dtypes: str, low: int = -9, empty: bool = True
) -> Iterator[Case]:
    """Yield the cases of a reduction for float32 and for ``dtypes``."""
    one = frozenset({1})
    rows: dict[str, tuple[int, list[int]]] = {
        "last axis": (1, [-1]),
        "inner axis": (1, [1]),
        "two axes": (0, [0, 2]),
        "space": (1, [2, 3]),
        "negative axes without extents": (0, [-2, -1]),
        "empty axes": (1, []),
    }
    for label, (keepdims, axes) in rows.items():
        arrays = (sample(2, 3, 4, 5, low=low), np.array(axes, np.int64))
        yield Case(label, make(keepdims), arrays, constants=one)
    yield Case("all axes", make(), (sample(3, 17, low=low),))
    yield Case("to a scalar", make(0), (sample(3, 2, low=low),))
    nothing = (sample(2, 3, low=low), np.array([], np.int64))
    yield Case("empty axes that mean none", make(1, 1), nothing, constants=one)
    yield Case("scalar", make(), (sample(low=low),))
    if empty:
        yield Case("of nothing", make(0), (sample(2, 0), np.array([1])), constants=one)
    for dtype in dtypes:
        arrays = (sample(3, 9, dtype=dtype, low=low), np.array([1]))
        tolerance = 3e-3 if dtype == "float16" else 1e-4
        yield Case(dtype, make(0), arrays, tolerance, constants=one)


@dataclass(frozen=True)
class ReduceSum(Reduction):
    """The sum along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceSum-13.
    """

    name: ClassVar[str] = "reduce_sum"

    @override
    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        total: Dim = 0
        for dim in dims:
            total = total + dim
        return total

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(data, axes, data.dtype, keepdims=True)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")


@dataclass(frozen=True)
class ReduceMean(Reduction):
    """The mean along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are summed in float32. The mean of integers is rounded towards
    zero; the mean of no integers is 0.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceMean-18.
    """

    name: ClassVar[str] = "reduce_mean"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        count = int(np.prod([data.shape[a] for a in axes], dtype=np.int64))
        total = np.sum(data, axes, data.dtype, keepdims=True)
        if data.dtype.kind == "f":
            return np.asarray(total / np.asarray(count, data.dtype))
        wide = np.int64 if data.dtype.kind == "i" else np.uint64
        return divide_towards_zero(total.astype(wide), np.asarray(count, wide))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64", empty=False)


@dataclass(frozen=True)
class ReduceProd(Reduction):
    """The product along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceProd-18.
    """

    name: ClassVar[str] = "reduce_prod"

    @override
    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        return count_elements(tuple(dims))

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.prod(data, axes, data.dtype, keepdims=True))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")


@dataclass(frozen=True)
class ReduceMax(Reduction):
    """The largest element along axes; NaN if an element is NaN.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: any; the maximum of no elements is the smallest value of the type.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceMax-20.
    """

    name: ClassVar[str] = "reduce_max"
    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.max(data, axis=axes, keepdims=True, initial=lowest(data.dtype)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(
            cls, "float16", "float64", "int32", "int64", "int8", "uint8", "bool"
        )
        special = np.array([[np.nan, 1.0, np.inf], [-np.inf, 0.0, 2.0]], np.float32)
        yield Case("not a number", cls(), (special, np.array([1])), constants=frozenset({1}))


@dataclass(frozen=True)
class ReduceMin(Reduction):
    """The smallest element along axes; NaN if an element is NaN.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: any; the minimum of no elements is the largest value of the type.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceMin-20.
    """

    name: ClassVar[str] = "reduce_min"
    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        kind = data.dtype.kind
        if kind == "f":
            start: float = np.inf
        else:
            start = True if kind == "b" else np.iinfo(data.dtype).max
        return np.asarray(np.min(data, axis=axes, keepdims=True, initial=start))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(
            cls, "float16", "float64", "int32", "int64", "int8", "uint8", "bool"
        )
        special = np.array([[np.nan, 1.0, np.inf], [-np.inf, 0.0, 2.0]], np.float32)
        yield Case("not a number", cls(), (special, np.array([1])), constants=frozenset({1}))


@dataclass(frozen=True)
class ReduceL1(Reduction):
    """The sum of absolute values along axes (L1 norm).

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceL1-18.
    """

    name: ClassVar[str] = "reduce_l1"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(np.abs(data), axes, data.dtype, keepdims=True)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")


@dataclass(frozen=True)
class ReduceL2(Reduction):
    """The square root of the sum of squares along axes (L2 norm).

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceL2-18.
    """

    name: ClassVar[str] = "reduce_l2"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        wide = data.astype(np.float64) if data.dtype.kind in "iu" else data
        return np.asarray(np.sqrt(np.sum(wide * wide, axes, keepdims=True)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")


@dataclass(frozen=True)
class ReduceSumSquare(Reduction):
    """The sum of squares along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; 16-bit floats are computed in float32.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceSumSquare-18.
    """

    name: ClassVar[str] = "reduce_sum_square"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(data * data, axes, data.dtype, keepdims=True)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")


@dataclass(frozen=True)
class ReduceLogSum(Reduction):
    """The logarithm of the sum along axes.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: floats.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceLogSum-18.
    """

    name: ClassVar[str] = "reduce_log_sum"
    dtypes: ClassVar[frozenset[DType]] = FLOATS

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.log(np.sum(data, axes, keepdims=True)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", low=1)


@dataclass(frozen=True)
class ReduceLogSumExp(Reduction):
    """The logarithm of the sum of exponentials along axes, without overflow.

    Shapes: (data, axes[k]?) -> data's with the reduced axes of extent 1, or removed without
    ``keepdims``; without axes all are reduced, or none with ``noop_with_empty_axes``.

    Dtypes: floats.

    Raises ShapeError: when the axes are not known or out of range.

    Source: ONNX ReduceLogSumExp-18.
    """

    name: ClassVar[str] = "reduce_log_sum_exp"
    dtypes: ClassVar[frozenset[DType]] = FLOATS

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        peak = np.max(data, axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(peak), peak, 0).astype(data.dtype)
        return np.asarray(np.log(np.sum(np.exp(data - shift), axes, keepdims=True)) + shift)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64")
        large = np.array([[1000.0, 999.0], [-1000.0, -1001.0]], np.float32)
        yield Case("large numbers", cls(), (large, np.array([1])), constants=frozenset({1}))


@dataclass(frozen=True)
class CumSum(Op):
    """Cumulative sums along an axis.

    With ``reverse`` the sums start at the end of the axis; with ``exclusive`` each sum excludes the
    element itself.

    Shapes: (data, axis scalar) -> data's.

    Dtypes: numbers; the axis is int32 or int64.

    Raises ShapeError: when the axis is not known or out of range.

    Source: ONNX CumSum-14.
    """

    name: ClassVar[str] = "cum_sum"

    exclusive: int = 0
    reverse: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        require_dtype(data, NUMBERS, "input 0 of cum_sum")
        axes = ints_at(self, inputs, 1, "the axis", scalar=True) or ()
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
