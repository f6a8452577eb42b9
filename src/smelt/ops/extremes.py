"""ArgMax, ArgMin and TopK: which elements along an axis are the largest or smallest."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._reference_numerics import widen
from smelt.ops._shape import (
    NUMBERS,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
    shape_text,
)
from smelt.ops._shape_operands import dims_at, present, sample
from smelt.types import DType, TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class ArgExtreme(Op):
    """Index of the largest or smallest element along an axis."""

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        require_dtype(data, NUMBERS, f"input 0 of {self.name}")
        axis = normalize_axis(self.axis, data.rank)
        if not assume_at_least(data.shape[axis], 1, f"axis {axis} of input 0"):
            raise ShapeError(f"axis {axis} of {data} has no elements for {self.name}")
        kept = (1,) if self.keepdims else ()
        shape = (*data.shape[:axis], *kept, *data.shape[axis + 1 :])
        return (TensorType(DType.INT64, shape),)

    @abstractmethod
    def pick(self, data: Array) -> Array:
        """Return the index of the first extreme element along the axis."""

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        if self.select_last_index:
            picked = data.shape[self.axis] - 1 - self.pick(np.flip(data, self.axis))
        else:
            picked = self.pick(data)
        indices = np.asarray(picked, np.int64)
        return (np.expand_dims(indices, self.axis) if self.keepdims else indices,)


def arg_cases(make: Callable[..., ArgExtreme]) -> Iterator[Case]:
    """Yield the test cases of both ops."""
    ties = np.array([[2, 5, 5, 1, 1], [3, 3, 3, 3, 3]], np.float32)
    for last in (0, 1):
        yield Case(f"ties, last {last}", make(axis=1, select_last_index=last), (ties,))
        long = sample(2, 9001)
        yield Case(f"long rows, last {last}", make(axis=1, select_last_index=last), (long,))
    yield Case("first axis", make(), (sample(4, 3),))
    yield Case("without the axis", make(axis=1, keepdims=0), (sample(2, 7, 3),))
    yield Case("negative axis", make(axis=-2), (sample(2, 7, 3),))
    yield Case("to a scalar", make(keepdims=0), (sample(9),))
    yield Case("no rows", make(axis=1), (sample(0, 3),))
    for dtype in ("float16", "int32", "int64", "int8"):
        yield Case(dtype, make(axis=1), (sample(3, 11, dtype=dtype),))


@dataclass(frozen=True)
class ArgMax(ArgExtreme):
    """The index of the largest element along an axis.

    Of equal elements it is the first one, or the last one with ``select_last_index``.

    Shapes: the input's with ``axis`` of extent 1, or removed without ``keepdims``.

    Dtypes: numbers -> int64; the first NaN counts as the largest.

    Raises ShapeError: when ``axis`` is outside the rank or has no elements.

    Source: ONNX ArgMax-13.
    """

    name: ClassVar[str] = "arg_max"

    @override
    def pick(self, data: Array) -> Array:
        return np.asarray(np.argmax(data, self.axis))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from arg_cases(cls)


@dataclass(frozen=True)
class ArgMin(ArgExtreme):
    """The index of the smallest element along an axis.

    Of equal elements it is the first one, or the last one with ``select_last_index``.

    Shapes: the input's with ``axis`` of extent 1, or removed without ``keepdims``.

    Dtypes: numbers -> int64; the first NaN counts as the smallest.

    Raises ShapeError: when ``axis`` is outside the rank or has no elements.

    Source: ONNX ArgMin-13.
    """

    name: ClassVar[str] = "arg_min"

    @override
    def pick(self, data: Array) -> Array:
        return np.asarray(np.argmin(data, self.axis))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from arg_cases(cls)


@dataclass(frozen=True)
class TopK(Op):
    """The ``k`` largest (or smallest) elements along an axis and their indices, best first.

    Equal elements are sorted by index. NaN is larger than all numbers.

    Shapes: (data, k[1]) -> (values, indices), both data's with ``axis`` of extent k.

    Dtypes: numbers; the indices are int64.

    Raises ShapeError: when k is not known or larger than the axis.

    Source: ONNX TopK-24. ``sorted=0``, which allows any order, also gives sorted elements.
    """

    name: ClassVar[str] = "top_k"

    axis: int = -1
    largest: int = 1
    sorted: int = 1

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        require_dtype(data, NUMBERS, "input 0 of top_k")
        axis = normalize_axis(self.axis, data.rank)
        dims = dims_at(self, inputs, 1, "k", scalar=True) or ()
        if len(dims) != 1:
            raise ShapeError(f"k of top_k must be one number, not {shape_text(dims)}")
        count, extent = dims[0], data.shape[axis]
        fits = assume_at_least(extent, count, f"axis {axis} of input 0 and k")
        if not fits or (isinstance(count, int) and count < 0):
            raise ShapeError(f"k of top_k is {count}; the axis has {extent} elements")
        shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
        return (TensorType(data.dtype, shape), TensorType(DType.INT64, shape))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, count = present(inputs, 0), int(present(inputs, 1).item())
        wide = widen(data)  # numpy does not sort NaN last in bfloat16 arrays
        if self.largest:
            # Sorting the reversed axis and reversing again keeps equal elements sorted by index.
            ascending = np.argsort(np.flip(wide, self.axis), self.axis, kind="stable")
            order = data.shape[self.axis] - 1 - np.flip(ascending, self.axis)
        else:
            order = np.argsort(wide, self.axis, kind="stable")
        indices = np.take(order, np.arange(count), self.axis).astype(np.int64)
        return (np.take_along_axis(data, indices, self.axis), indices)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        yield Case("largest", cls(), (sample(3, 9), np.array([4])), constants=one)
        yield Case("smallest", cls(largest=0), (sample(3, 9), np.array([4])), constants=one)
        yield Case("first axis", cls(0), (sample(5, 3), np.array([2])), constants=one)
        ties = np.array([[1, 3, 3, 0, 3, 1]], np.float32)
        yield Case("ties, largest", cls(), (ties, np.array([5])), constants=one)
        yield Case("ties, smallest", cls(largest=0), (ties, np.array([5])), constants=one)
        yield Case("all", cls(1), (sample(2, 4, 3), np.array([4])), constants=one)
        yield Case("none", cls(), (sample(2, 4), np.array([0])), constants=one)
        for dtype in ("float16", "int64", "int32"):
            array = sample(2, 8, dtype=dtype)
            yield Case(dtype, cls(), (array, np.array([3])), constants=one)
