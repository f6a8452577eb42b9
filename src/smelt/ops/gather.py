"""Gather: slices of a tensor, selected by indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._index import positive_indices, require_indices
from smelt.ops._shape import (
    INDICES,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
)
from smelt.ops._shape_operands import known_dims, operand_at, present, sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Gather(Op):
    """The slices of data along an axis that indices select; negative indices count from the end.

    Shapes: (data, indices) -> data's with the extent of ``axis`` replaced by the shape of the
    indices.

    Dtypes: any; the indices are int32 or int64.

    Raises ShapeError: when ``axis`` or a constant index is out of range. The reference raises
    IndexRangeError for an index out of range.

    Source: ONNX Gather-13.
    """

    name: ClassVar[str] = "gather"

    axis: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data, indices = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(indices, INDICES, "indices of gather")
        axis = normalize_axis(self.axis, data.rank)
        require_indices(operand_at(inputs, 1), data.shape[axis : axis + 1])
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        return (TensorType(data.dtype, shape),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims, indices = known_dims(inputs, 0), known_dims(inputs, 1)
        if dims is None or indices is None or input_type(self, inputs, 0).rank != 1:
            return None
        picked = [dims[i] for i in indices if isinstance(i, int) and -len(dims) <= i < len(dims)]
        return tuple(picked) if len(picked) == len(indices) else None

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, indices = present(inputs, 0), present(inputs, 1)
        axis = self.axis % data.ndim
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        if 0 in shape:  # an empty result needs no index
            return (np.empty(shape, data.dtype),)
        return (np.take(data, positive_indices(indices, data.shape[axis]), axis).reshape(shape),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        rows = np.array([[0, 2], [-1, 1]], np.int64)
        yield Case("rows", cls(), (sample(3, 4), rows))
        yield Case("columns", cls(1), (sample(3, 4, 2), rows))
        yield Case("last axis", cls(-1), (sample(2, 5), np.array([4, 0, 0], np.int32)))
        yield Case("scalar index", cls(1), (sample(3, 4), np.array(2)))
        yield Case("constant index", cls(), (sample(3, 4), rows), constants=frozenset({1}))
        yield Case("no indices", cls(), (sample(3, 4), np.array([], np.int64)))
        yield Case(
            "embedding", cls(), (sample(9, 16), np.array([[8, 0, 3]])), constants=frozenset({0})
        )
        for dtype in ("float16", "int64", "bool"):
            yield Case(dtype, cls(), (sample(5, 3, dtype=dtype), np.array([4, -2])))
