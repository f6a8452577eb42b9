"""ArgMax, ArgMin and TopK: which elements along an axis are the largest or smallest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._reference_numerics import widen
from smelt.ops._shape import NUMBERS, input_type, input_types, normalize_axis, require_dtype
from smelt.ops._shape_operands import number_at, present, sample
from smelt.types import Dim, DType, TensorType, ValueType, assume_at_least, element_count, override

_SORT_OPERATIONS: Final = 64
"""Operations in the time of sorting one element with its index: some 50 ns."""


class ArgExtreme(BuiltinOp):
    """Index of the first extreme element along an axis, which ``function`` returns."""

    axis: int = 0
    """Axis along which the extreme element is searched; a negative one counts from the end."""
    keepdims: int = 1
    """Whether the result keeps the axis with extent 1."""
    select_last_index: int = 0
    """Whether the index is that of the last of equal elements instead of the first."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1, dtypes=NUMBERS)
        axis = normalize_axis(self.axis, data.rank)
        if not assume_at_least(data.shape[axis], 1, f"axis {axis} of input 0"):
            raise ShapeError(
                f"axis {axis} of {data} has no elements; {self.name} needs at least one"
            )
        kept = (1,) if self.keepdims else ()
        shape = (*data.shape[:axis], *kept, *data.shape[axis + 1 :])
        return (TensorType(DType.INT64, shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, first_extreme = present(inputs, 0), type(self)._function
        if self.select_last_index:
            flipped = np.flip(data, self.axis)
            picked = data.shape[self.axis] - 1 - first_extreme(flipped, self.axis)
        else:
            picked = first_extreme(data, self.axis)
        indices = np.asarray(picked, np.int64)
        return (np.expand_dims(indices, self.axis) if self.keepdims else indices,)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        ties = np.array([[2, 5, 5, 1, 1], [3, 3, 3, 3, 3]], np.float32)
        for last in (0, 1):
            yield Case(f"ties, last {last}", cls(axis=1, select_last_index=last), (ties,))
            long = sample(2, 9001)
            yield Case(f"long rows, last {last}", cls(axis=1, select_last_index=last), (long,))
        yield Case("first axis", cls(), (sample(4, 3),))
        yield Case("without the axis", cls(axis=1, keepdims=0), (sample(2, 7, 3),))
        yield Case("negative axis", cls(axis=-2), (sample(2, 7, 3),))
        yield Case("to a scalar", cls(keepdims=0), (sample(9),))
        yield Case("no rows", cls(axis=1), (sample(0, 3),))
        for dtype in ("float16", "int32", "int64", "int8"):
            yield Case(dtype, cls(axis=1), (sample(3, 11, dtype=dtype),))


class ArgMax(ArgExtreme, function=np.argmax):
    """The index of the largest element along an axis.

    Of equal elements it is the first one, or the last one with ``select_last_index``.

    Shapes: the input's with ``axis`` of extent 1, or removed without ``keepdims``.

    Dtypes: numbers -> int64; the first NaN counts as the largest.

    Raises ShapeError: when ``axis`` is outside the rank or has no elements.

    Source: ONNX ArgMax-13.
    """


class ArgMin(ArgExtreme, function=np.argmin):
    """The index of the smallest element along an axis.

    Of equal elements it is the first one, or the last one with ``select_last_index``.

    Shapes: the input's with ``axis`` of extent 1, or removed without ``keepdims``.

    Dtypes: numbers -> int64; the first NaN counts as the smallest.

    Raises ShapeError: when ``axis`` is outside the rank or has no elements.

    Source: ONNX ArgMin-13.
    """


class TopK(BuiltinOp):
    """The ``k`` largest (or smallest) elements along an axis and their indices, best first.

    Equal elements are sorted by index. NaN is larger than all numbers.

    Shapes: (data, k[1]) -> (values, indices), both data's with ``axis`` of extent k.

    Dtypes: numbers; the indices are int64.

    Raises ShapeError: when k is not known or larger than the axis.

    Source: ONNX TopK-24. ``sorted=0``, which allows any order, also gives sorted elements.
    """

    axis: int = -1
    """Axis along which elements are selected; a negative one counts from the end."""
    largest: int = 1
    """Whether the largest elements are selected instead of the smallest."""
    sorted: int = 1
    """Whether the elements must be sorted; they are sorted in either case."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, _ = input_types(self, inputs, 2)
        require_dtype(data, NUMBERS, "input 0 of top_k")
        axis = normalize_axis(self.axis, data.rank)
        count, extent = number_at(self, inputs, 1, "k"), data.shape[axis]
        fits = assume_at_least(extent, count, f"axis {axis} of input 0 and k")
        if not fits or (isinstance(count, int) and count < 0):
            raise ShapeError(
                f"k of top_k is {count}; it must be from 0 to the extent of the axis, {extent}"
            )
        shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
        return (TensorType(data.dtype, shape), TensorType(DType.INT64, shape))

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        return _SORT_OPERATIONS * element_count(input_type(self, inputs, 0).shape)

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
