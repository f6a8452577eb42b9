"""Reductions of the elements along some axes to one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._reduce import Reduction, reduce_cases
from smelt.ops._reference_numerics import divide_towards_zero, lowest
from smelt.ops._shape import FLOATS
from smelt.ops._shape_operands import count_elements
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim


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
