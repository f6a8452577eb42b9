"""ScatterND: slices of a tensor replaced or reduced with updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._index import positive_indices, require_indices, require_reduction, scatter
from smelt.ops._shape import (
    INDICES,
    input_type,
    require_dtype,
    require_inputs,
    require_rank,
    require_same_dtype,
    require_shape,
    require_static,
)
from smelt.ops._shape_operands import operand_at, present, sample
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class ScatterND(Op):
    """Data with updates written to the slices that index vectors select.

    With a ``reduction``, an update is combined with the elements of its slice. An index vector of
    length 0 selects all data.

    Shapes: (data, indices[n…, k], updates[n…, data's extents after k…]) -> data's.

    Dtypes: any, bool without ``reduction``; the indices are int64.

    Raises ShapeError: when the shapes do not match, the reduction is unknown, or a constant index
    is out of range. The reference raises IndexRangeError for an index out of range.

    Source: ONNX ScatterND-18.
    """

    name: ClassVar[str] = "scatter_nd"

    reduction: str = "none"
    """none, add, mul, max or min."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        data, indices, updates = (input_type(self, inputs, i) for i in range(3))
        require_dtype(indices, INDICES, "indices of scatter_nd")
        require_same_dtype(data, updates)
        require_reduction(self.reduction, data.dtype)
        require_rank(indices, "indices of scatter_nd", 1, 64)
        (length,) = require_static(indices.shape[-1:], "the last extent of the indices")
        if length > data.rank:
            raise ShapeError(f"index vectors of length {length} are too long for {data}")
        shape = (*indices.shape[:-1], *data.shape[length:])
        require_shape(updates, shape, "updates of scatter_nd")
        require_indices(operand_at(inputs, 1), data.shape[:length])
        return (data,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, indices, updates = (present(inputs, i) for i in range(3))
        length = indices.shape[-1]
        columns = [positive_indices(indices[..., k], data.shape[k]) for k in range(length)]
        # A leading axis of extent 1, so that an index vector of length 0 selects all data.
        coordinates = (np.zeros(indices.shape[:-1], np.int64), *columns)
        return (scatter(data[np.newaxis], coordinates, updates, self.reduction)[0],)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("elements", cls(), (sample(8), np.array([[4], [3], [-1]]), sample(3)))
        yield Case("rows", cls(), (sample(4, 3), np.array([[2], [0]]), sample(2, 3)))
        pairs = np.array([[[0, 1]], [[2, -1]]])
        yield Case("slices", cls(), (sample(3, 4, 2), pairs, sample(2, 1, 2)))
        repeated = np.array([[1], [1]])
        for reduction in ("add", "mul", "max", "min"):
            yield Case(reduction, cls(reduction), (sample(3, 2), repeated, sample(2, 2, low=-5)))
        everything = np.zeros((2, 0), np.int64)
        for reduction in ("none", "add"):
            inputs = (sample(4, 3), everything, sample(2, 4, 3, low=-5))
            yield Case(f"everything, {reduction}", cls(reduction), inputs)
        integers = sample(8, dtype="int64"), np.array([[4]]), sample(1, dtype="int64")
        yield Case("int64", cls(), integers)
