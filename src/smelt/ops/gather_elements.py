"""GatherElements: single elements along an axis, selected by indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._index import coordinates_along_axis, require_indices, require_indices_within
from smelt.ops._shape import (
    INDICES,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
    require_rank,
)
from smelt.ops._shape_operands import operand_at, present, sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class GatherElements(Op):
    """The elements of data that indices select along an axis.

    The coordinates of an element are those of its index, except along ``axis``, where the
    coordinate is the index itself.

    Shapes: (data, indices) -> the indices'; both have the same rank.

    Dtypes: any; the indices are int32 or int64.

    Raises ShapeError: when the ranks differ, ``axis`` is out of range, the indices have more
    elements than data on another axis, or a constant index is out of range. The reference raises
    IndexRangeError for an index out of range.

    Source: ONNX GatherElements-13.
    """

    name: ClassVar[str] = "gather_elements"

    axis: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data, indices = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(indices, INDICES, "indices of gather_elements")
        require_rank(indices, "indices of gather_elements", data.rank)
        axis = normalize_axis(self.axis, data.rank)
        require_indices_within(indices, data, axis)
        require_indices(operand_at(inputs, 1), data.shape[axis : axis + 1])
        return (TensorType(data.dtype, indices.shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, indices = present(inputs, 0), present(inputs, 1)
        return (np.asarray(data[coordinates_along_axis(indices, data, self.axis)]),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        indices = np.array([[0, 1, 2], [2, -1, 0]], np.int64)
        yield Case("rows", cls(0), (sample(3, 3), indices))
        yield Case("columns", cls(1), (sample(2, 3), indices))
        yield Case("negative axis", cls(-1), (sample(2, 4), indices.astype(np.int32)))
        yield Case("fewer indices than data", cls(0), (sample(5, 6), indices))
        yield Case("int64", cls(1), (sample(2, 3, dtype="int64"), indices))
        yield Case("float16", cls(1), (sample(2, 3, dtype="float16"), indices))
        yield Case("nothing", cls(0), (sample(2, 3), np.zeros((0, 3), np.int64)))
