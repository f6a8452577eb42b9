"""GatherND: slices of a tensor, selected by index vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._index import integers, positive_indices, require_indices
from smelt.ops._shape import (
    INDICES,
    input_type,
    require_dtype,
    require_inputs,
    require_static,
)
from smelt.ops._shape_operands import operand_at, present, sample
from smelt.types import TensorType, assume_equal, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class GatherND(Op):
    """The slices of data that index vectors select, within the same batch item.

    An index vector of length 0 selects the whole data of its batch item.

    Shapes: (data[b…, d…], indices[b…, n…, k]) -> [b…, n…, d after the first k…], with
    ``batch_dims`` batch axes.

    Dtypes: any; the indices are int64.

    Raises ShapeError: when the index vectors are longer than the rank of data, the batch axes
    differ, or a constant index is out of range. The reference raises IndexRangeError for an index
    out of range.

    Source: ONNX GatherND-13.
    """

    name: ClassVar[str] = "gather_nd"

    batch_dims: int = 0
    """Number of batch axes, the first axes of data and indices."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data, indices = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(indices, INDICES, "indices of gather_nd")
        batch = self.batch_dims
        if not 0 <= batch < min(data.rank, indices.rank):
            raise ShapeError(f"{batch} batch axes are too many for {data} and {indices}")
        if not all(
            assume_equal(data.shape[axis], indices.shape[axis], f"axis {axis} of inputs 0 and 1")
            for axis in range(batch)
        ):
            raise ShapeError(f"the batch axes of {data} and {indices} differ")
        (length,) = require_static(indices.shape[-1:], "the last extent of the indices")
        if length > data.rank - batch:
            raise ShapeError(f"index vectors of length {length} are too long for {data}")
        require_indices(operand_at(inputs, 1), data.shape[batch : batch + length])
        return (TensorType(data.dtype, (*indices.shape[:-1], *data.shape[batch + length :])),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, indices = present(inputs, 0), present(inputs, 1)
        batch, length = self.batch_dims, indices.shape[-1]
        rank = indices.ndim - 1
        # A leading axis of extent 1, so that an index vector of length 0 selects all data.
        coordinates: list[Array] = [np.zeros(indices.shape[:-1], np.int64)]
        for axis, extent in enumerate(indices.shape[:batch]):
            line = integers(0, extent)
            coordinates.append(line.reshape([extent if i == axis else 1 for i in range(rank)]))
        extents = data.shape[batch : batch + length]
        coordinates.extend(positive_indices(indices[..., k], e) for k, e in enumerate(extents))
        return (np.asarray(data[np.newaxis][tuple(coordinates)]),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("elements", cls(), (sample(3, 4), np.array([[0, 1], [-1, 3]])))
        yield Case("slices", cls(), (sample(3, 4, 5), np.array([[[2, 1]], [[0, -1]]])))
        yield Case("rows", cls(), (sample(3, 4), np.array([[2], [0], [2]])))
        yield Case("everything", cls(), (sample(3, 4), np.zeros((2, 0), np.int64)))
        nothing = np.zeros((2, 3, 0), np.int64)
        yield Case("everything in batches", cls(1), (sample(2, 3, 4), nothing))
        yield Case("in batches", cls(1), (sample(2, 3, 4), np.array([[[1]], [[-1]]])))
        yield Case("int64", cls(), (sample(3, 4, dtype="int64"), np.array([2, 1])))
        yield Case("float16", cls(), (sample(3, 4, dtype="float16"), np.array([[2, 1]])))
