"""TopK: the largest or smallest elements along an axis."""

from __future__ import annotations

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
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


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
