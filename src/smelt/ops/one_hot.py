"""OneHot: indices as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import (
    NUMBERS,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
    require_scalar,
    require_shape,
)
from smelt.ops._shape_operands import number_at, operand_at, present
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class OneHot(Op):
    """For each index a vector of ``depth`` elements that are "off", except the one at the index.

    All elements are "off" for an index that is out of range.

    Shapes: (indices, depth scalar, values[2] = off, on) -> the indices' with an axis of ``depth``
    inserted at ``axis``.

    Dtypes: numbers; the result has the type of the values.

    Raises ShapeError: when the depth is not known or negative, or ``axis`` is out of range for the
    result.

    Source: ONNX OneHot-11.
    """

    name: ClassVar[str] = "one_hot"

    axis: int = -1
    """Position of the new axis in the result."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        indices, values = input_type(self, inputs, 0), input_type(self, inputs, 2)
        require_scalar(input_type(self, inputs, 1), "the depth of one_hot")
        require_dtype(indices, NUMBERS, "indices of one_hot")
        require_shape(values, (2,), "values of one_hot")
        depth = self._depth(inputs)
        if isinstance(depth, int) and depth < 0:
            raise ShapeError(f"the depth of one_hot is {depth}; it must be at least 0")
        axis = normalize_axis(self.axis, indices.rank + 1)
        shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
        return (TensorType(values.dtype, shape),)

    def _depth(self, inputs: Sequence[Operand | None]) -> Dim:
        operand = operand_at(inputs, 1)
        if operand is not None and operand.value is not None and operand.value.size == 1:
            return int(operand.value.item())
        return number_at(self, inputs, 1, "the depth")

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        indices, depth, values = (present(inputs, i) for i in range(3))
        count = int(depth.item())
        integers = indices.astype(np.int64)
        positive: Array = np.where(integers < 0, integers + count, integers)
        axis = self.axis % (indices.ndim + 1)
        positions = np.arange(count).reshape(count, *(1,) * (indices.ndim - axis))
        is_on: Array = np.expand_dims(positive, axis) == positions
        return (np.asarray(np.where(is_on, values[1], values[0]), values.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        values = np.array([0.0, 1.0], np.float32)
        depth = np.array(5, np.int64)
        one = frozenset({1})
        indices = np.array([[0, 4], [-1, 7]], np.int64)
        for axis in (-1, 0, 1):
            yield Case(f"axis {axis}", cls(axis), (indices, depth, values), constants=one)
        other = np.array([9, -9], np.int64)
        yield Case("int64 values", cls(), (np.array([1, 2]), depth, other), constants=one)
        listed = np.array([3], np.int64)
        yield Case(
            "depth in a list", cls(), (np.array([1], np.int32), listed, values), constants=one
        )
        yield Case("no indices", cls(), (np.array([], np.int64), depth, values), constants=one)
