"""Elements read or written by indices that are data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import TEMPORARY_OPERATIONS, Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._index import (
    coordinates_along_axis,
    integers,
    positive_indices,
    require_indices,
    require_indices_within,
    require_reduction,
    scatter,
    vector_length,
)
from smelt.ops._shape import (
    INDICES,
    NUMBERS,
    input_type,
    input_types,
    normalize_axis,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_scalar,
    require_shape,
)
from smelt.ops._shape_operands import (
    count_elements,
    input_at,
    known_dims,
    number_at,
    present,
    sample,
)
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    assume_at_least,
    assume_equal,
    counted,
    override,
)

if TYPE_CHECKING:
    from smelt.types import Dim, ValueType


class Gather(BuiltinOp):
    """The slices of data along an axis that indices select; negative indices count from the end.

    The indices of empty slices are not checked: no element is read, whichever slices they select.

    Shapes: (data, indices) -> data's with the extent of ``axis`` replaced by the shape of the
    indices.

    Dtypes: any; the indices are int32 or int64.

    Raises ShapeError: when ``axis`` or a constant index is out of range. The reference raises
    IndexRangeError for an index out of range.

    Source: ONNX Gather-13.
    """

    is_recipe_step = True

    axis: int = 0
    """Axis along which the indices select slices; a negative one counts from the end."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, indices = input_types(self, inputs, 2)
        require_dtype(indices, INDICES, "the index tensor of gather")
        axis = normalize_axis(self.axis, data.rank)
        require_indices(input_at(inputs, 1), data.shape[axis : axis + 1])
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
        table = (sample(9, 16), np.array([[8, 0, 3]]))
        yield Case("embedding", cls(), table, constants=frozenset({0}))
        for dtype in ("float16", "int64", "bool"):
            yield Case(dtype, cls(), (sample(5, 3, dtype=dtype), np.array([4, -2])))


class GatherElements(BuiltinOp):
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

    axis: int = 0
    """Axis along which the indices select elements; a negative one counts from the end."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, indices = input_types(self, inputs, 2)
        require_dtype(indices, INDICES, "the index tensor of gather_elements")
        require_rank(indices, "the index tensor of gather_elements", data.rank)
        axis = normalize_axis(self.axis, data.rank)
        require_indices_within(indices, data, axis)
        require_indices(input_at(inputs, 1), data.shape[axis : axis + 1])
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


class GatherND(BuiltinOp):
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

    batch_dims: int = 0
    """Number of batch axes, the first axes of data and indices."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, indices = input_types(self, inputs, 2)
        require_dtype(indices, INDICES, "the index tensor of gather_nd")
        batch = self.batch_dims
        if not 0 <= batch < min(data.rank, indices.rank):
            raise ShapeError(
                f"batch_dims is {batch}; it must be at least 0, and less than the ranks of {data} "
                f"and {indices}"
            )
        if not all(
            assume_equal(data.shape[axis], indices.shape[axis], f"axis {axis} of inputs 0 and 1")
            for axis in range(batch)
        ):
            raise ShapeError(f"the batch axes of {data} and {indices} differ")
        length = vector_length(data, indices, batch)
        require_indices(input_at(inputs, 1), data.shape[batch : batch + length])
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


class ScatterElements(BuiltinOp):
    """Data with updates written to the positions along ``axis`` that indices select.

    With a ``reduction``, an update is combined with the element at its position.

    Shapes: (data, indices, updates) -> data's; all have the same rank, indices and updates the
    same shape.

    Dtypes: any, bool without ``reduction``; the indices are int32 or int64.

    Raises ShapeError: when the shapes do not match, the reduction is unknown, or a constant index
    is out of range. The reference raises IndexRangeError for an index out of range.

    Source: ONNX ScatterElements-18.
    """

    axis: int = 0
    """Axis along which the indices select positions; a negative one counts from the end."""
    reduction: str = "none"
    """none, add, mul, max or min."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, indices, updates = input_types(self, inputs, 3)
        require_dtype(indices, INDICES, "the index tensor of scatter_elements")
        require_same_dtype(data, updates)
        require_rank(indices, "the index tensor of scatter_elements", data.rank)
        require_shape(updates, indices.shape, "the update tensor of scatter_elements")
        require_reduction(self.reduction, data.dtype)
        axis = normalize_axis(self.axis, data.rank)
        require_indices_within(indices, data, axis)
        require_indices(input_at(inputs, 1), data.shape[axis : axis + 1])
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
            arrays = (sample(1, 5), repeated, sample(1, 3, int_low=-5))
            yield Case(reduction, cls(1, reduction), arrays)
        whole = sample(2, 3, dtype="int64")
        yield Case("int64", cls(1), (whole, indices, whole))


class ScatterND(BuiltinOp):
    """Data with updates written to the slices that index vectors select.

    With a ``reduction``, an update is combined with the elements of its slice. An index vector of
    length 0 selects all data.

    Shapes: (data, indices[n…, k], updates[n…, data's extents after k…]) -> data's.

    Dtypes: any, bool without ``reduction``; the indices are int64.

    Raises ShapeError: when the shapes do not match, the reduction is unknown, or a constant index
    is out of range. The reference raises IndexRangeError for an index out of range.

    Source: ONNX ScatterND-18.
    """

    reduction: str = "none"
    """none, add, mul, max or min."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, indices, updates = input_types(self, inputs, 3)
        require_dtype(indices, INDICES, "the index tensor of scatter_nd")
        require_same_dtype(data, updates)
        require_reduction(self.reduction, data.dtype)
        require_rank(indices, "the index tensor of scatter_nd", 1, 64)
        length = vector_length(data, indices)
        shape = (*indices.shape[:-1], *data.shape[length:])
        require_shape(updates, shape, "the update tensor of scatter_nd")
        require_indices(input_at(inputs, 1), data.shape[:length])
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
            yield Case(
                reduction, cls(reduction), (sample(3, 2), repeated, sample(2, 2, int_low=-5))
            )
        everything = np.zeros((2, 0), np.int64)
        for reduction in ("none", "add"):
            inputs = (sample(4, 3), everything, sample(2, 4, 3, int_low=-5))
            yield Case(f"everything, {reduction}", cls(reduction), inputs)
        integers = sample(8, dtype="int64"), np.array([[4]]), sample(1, dtype="int64")
        yield Case("int64", cls(), integers)


class OneHot(BuiltinOp):
    """For each index a vector of ``depth`` elements that are "off", except the one at the index.

    All elements are "off" for an index that is out of range.

    Shapes: (indices, depth scalar, values[2] = off, on) -> the indices' with an axis of ``depth``
    inserted at ``axis``.

    Dtypes: numbers; the result has the type of the values.

    Raises ShapeError: when the depth is not known or negative, or ``axis`` is out of range for the
    result.

    Source: ONNX OneHot-11.
    """

    axis: int = -1
    """Position of the new axis in the result."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        indices, depth_type, values = input_types(self, inputs, 3)
        require_scalar(depth_type, "the depth of one_hot")
        require_dtype(indices, NUMBERS, "the index tensor of one_hot")
        require_shape(values, (2,), "the value tensor of one_hot")
        depth = self._depth(inputs)
        if isinstance(depth, int) and depth < 0:
            raise ShapeError(f"the depth of one_hot is {depth}; it must be at least 0")
        axis = normalize_axis(self.axis, indices.rank + 1)
        shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
        return (TensorType(values.dtype, shape),)

    def _depth(self, inputs: Sequence[Operand | None]) -> Dim:
        operand = input_at(inputs, 1)
        if operand is not None and operand.value is not None and operand.value.size == 1:
            return int(operand.value.item())
        return number_at(self, inputs, 1, "the depth")

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        return TEMPORARY_OPERATIONS * self._depth(inputs)

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
        arrays = (np.array([1], np.int32), listed, values)
        yield Case("depth in a list", cls(), arrays, constants=one)
        yield Case("no indices", cls(), (np.array([], np.int64), depth, values), constants=one)


def _count_nonzero(operand: Operand | None, symbol: str) -> Dim:
    """Return how many elements of an operand are not zero, which is a symbol if a run decides."""
    if operand is None or operand.value is None:
        return SymbolicDim.symbol(symbol)
    return int(np.count_nonzero(operand.value))


class Compress(BuiltinOp):
    """The slices of data along an axis for which the condition is true.

    Without an axis, elements of the flattened data are selected. If the condition is not constant,
    the number of slices is the symbol ``count_symbol``, which a run determines; the graph declares
    its upper bound.

    Shapes: (data, condition[k]) -> data's, where ``axis`` has the number of selected slices; k may
    be less than the extent of the axis.

    Dtypes: any; the condition is bool.

    Raises ShapeError: when the condition is not a vector or longer than the axis.

    Source: ONNX Compress-11.
    """

    axis: int | None = None
    """Axis of the slices; None for the flattened data."""
    count_symbol: str = "compress_count"
    """Symbol of the number of slices."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        data, condition = input_types(self, inputs, 2)
        require_dtype(condition, {DType.BOOL}, "the condition of compress")
        require_rank(condition, "the condition of compress", 1)
        count = _count_nonzero(inputs[1], self.count_symbol)
        if self.axis is None:
            self._check(condition.shape[0], count_elements(data.shape), "input 0")
            return (TensorType(data.dtype, (count,)),)
        axis = normalize_axis(self.axis, data.rank)
        self._check(condition.shape[0], data.shape[axis], f"axis {axis} of input 0")
        shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
        return (TensorType(data.dtype, shape),)

    @staticmethod
    def _check(length: Dim, extent: Dim, what: str) -> None:
        named = f"the element counts of {what} and of the condition"
        if not assume_at_least(extent, length, named):
            raise ShapeError(
                f"the condition has {counted(length, 'element')}, but {what} has only {extent}"
            )

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.compress(present(inputs, 1), present(inputs, 0), self.axis),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        condition = np.array([False, True, True])
        yield Case("rows", cls(0), (sample(3, 4), condition))
        yield Case("columns, short condition", cls(1), (sample(2, 5), condition))
        yield Case("flat", cls(), (sample(3, 2), np.array([True, False, False, False, True])))
        arrays = (sample(2, 3, dtype="int64"), condition)
        yield Case("constant", cls(-1), arrays, constants=frozenset({1}))


class NonZero(BuiltinOp):
    """The indices of the elements that are not zero, in row-major order, one column for each.

    Unless the data is constant, their number is the symbol ``count_symbol``, which a run
    determines; the graph declares its upper bound.

    Shapes: (data[rank axes]) -> [rank, count_symbol].

    Dtypes: any -> int64.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX NonZero-13; a scalar counts as a vector of one element.
    """

    count_symbol: str = "nonzero_count"
    """Symbol of the number of elements that are not zero."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1)
        count = _count_nonzero(inputs[0], self.count_symbol)
        return (TensorType(DType.INT64, (max(data.rank, 1), count)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = np.atleast_1d(present(inputs, 0))
        return (np.array(np.nonzero(data), np.int64).reshape(data.ndim, -1),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("matrix", cls(), (np.array([[1, 0, 2], [0, 0, -3]], np.float32),))
        yield Case("bool", cls(), (sample(3, 4, dtype="bool"),))
        yield Case("none", cls(), (np.zeros((2, 3), np.int64),))
        yield Case("three axes", cls(), (sample(2, 3, 4, dtype="int64", int_low=-1, int_high=2),))
