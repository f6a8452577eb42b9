"""ScatterElements: single elements of a tensor replaced or reduced with updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._index import (
    coordinates_along_axis,
    require_indices,
    require_indices_within,
    require_reduction,
    scatter,
)
from smelt.ops._shape import (
    INDICES,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
    require_rank,
    require_same_dtype,
    require_shape,
)
from smelt.ops._shape_operands import operand_at, present, sample
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class ScatterElements(Op):
    """Data with updates written to the positions along ``axis`` that indices select.

    With a ``reduction``, an update is combined with the element at its position.

    Shapes: (data, indices, updates) -> data's; all have the same rank, indices and updates the
    same shape.

    Dtypes: any, bool without ``reduction``; the indices are int32 or int64.

    Raises ShapeError: when the shapes do not match, the reduction is unknown, or a constant index
    is out of range. The reference raises IndexRangeError for an index out of range.

    Source: ONNX ScatterElements-18.
    """

    name: ClassVar[str] = "scatter_elements"

    axis: int = 0
    reduction: str = "none"
    """none, add, mul, max or min."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        data, indices, updates = (input_type(self, inputs, i) for i in range(3))
        require_dtype(indices, INDICES, "indices of scatter_elements")
        require_same_dtype(data, updates)
        require_rank(indices, "indices of scatter_elements", data.rank)
        require_shape(updates, indices.shape, "updates of scatter_elements")
        require_reduction(self.reduction, data.dtype)
        axis = normalize_axis(self.axis, data.rank)
        require_indices_within(indices, data, axis)
        require_indices(operand_at(inputs, 1), data.shape[axis : axis + 1])
        return (data,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, indices, updates = (present(inputs, i) for i in range(3))
        coordinates = coordinates_along_axis(indices, data, self.axis)
        return (scatter(data, coordinates, updates, self.reduction),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        indices = np.array([[0, 2, 1], [1, -3, 2]], np.int64)
        updates = sample(2, 3)
        yield Case("rows", cls(0), (sample(3, 3), indices, updates))
        yield Case("columns", cls(1), (sample(2, 3), indices, updates))
        repeated = np.array([[1, 1, 1]], np.int32)
        for reduction in ("add", "mul", "max", "min"):
            arrays = (sample(1, 5), repeated, sample(1, 3, low=-5))
            yield Case(reduction, cls(1, reduction), arrays)
        yield Case(
            "int64", cls(1), (sample(2, 3, dtype="int64"), indices, sample(2, 3, dtype="int64"))
        )
