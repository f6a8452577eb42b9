"""Index arithmetic and checks of the gather and scatter ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import IndexRangeError, ShapeError
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import require_choice, require_static, shape_text
from smelt.types import Dim, DType, TensorType, assume_at_least, counted

if TYPE_CHECKING:
    from smelt.ir import Array, Operand

_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def integers(start: int, stop: int) -> Array:
    """Return the integers from ``start`` to ``stop - 1`` as int64."""
    return np.asarray(range(start, stop), np.int64)


def positive_indices(indices: Array, extent: int) -> Array:
    """Return indices with negative ones converted to positions from the start of the axis.

    Raises IndexRangeError, which names the first index that is out of range.
    """
    if (message := _outside(indices, extent)) is not None:
        raise IndexRangeError(message)
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + extent, wide)


def _outside(indices: Array, extent: int) -> str | None:
    """Return the message for the first index that is out of range, or None."""
    outside = (indices < -extent) | (indices >= extent)
    if not bool(outside.any()):
        return None
    return (
        f"index {indices[outside][0]} is out of range for an axis of {counted(extent, 'element')}"
    )


def require_indices(operand: Operand | None, extents: Sequence[Dim]) -> None:
    """Check constant indices, or index vectors with one index for each extent.

    Symbolic extents are not checked. Raises ShapeError, which names the first index out of range.
    """
    if operand is None or operand.elements is None:
        return
    value = operand.elements
    columns = [value] if len(extents) == 1 else [value[..., k] for k in range(len(extents))]
    for column, extent in zip(columns, extents, strict=True):
        if isinstance(extent, int) and (message := _outside(column, extent)) is not None:
            raise ShapeError(message)


def vector_length(data: TensorType, indices: TensorType, batch: int = 0) -> int:
    """Return the length of index vectors into data after its ``batch`` axes. Raises ShapeError."""
    (length,) = require_static(indices.shape[-1:], "the last extent of the indices")
    if length > data.rank - batch:
        raise ShapeError(
            f"index vectors have {counted(length, 'element')}; they must have at most "
            f"{data.rank - batch}, the number of axes of {data} without batch axes"
        )
    return length


def require_indices_within(indices: TensorType, data: TensorType, axis: int) -> None:
    """Check that the extents of indices do not exceed those of data on axes other than ``axis``.

    If symbols decide it, a guard is recorded. Raises ShapeError.
    """
    pairs = enumerate(zip(data.shape, indices.shape, strict=True))
    for other, (limit, extent) in pairs:
        if other != axis and not assume_at_least(limit, extent, f"axis {other} of inputs 0 and 1"):
            raise ShapeError(
                f"axis {other} of the indices has {counted(extent, 'element')}, more than the "
                f"{limit} of "
                f"data {shape_text(data.shape)}"
            )


def coordinates_along_axis(indices: Array, data: Array, axis: int) -> tuple[Array, ...]:
    """Return the coordinates of the element for each index, one array for each axis.

    They are the coordinates of the index itself, except along ``axis``, where the index is the
    coordinate. Raises IndexRangeError when a coordinate is outside the data.
    """
    for other, (extent, limit) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if other != axis % data.ndim and extent > limit and indices.size:
            raise IndexRangeError(
                f"axis {other} of the indices has {counted(extent, 'element')}, more than the "
                f"{limit} of the data"
            )
    grid: Array = np.asarray(np.indices(indices.shape), np.int64)
    grid[axis] = positive_indices(indices, data.shape[axis])
    return tuple(grid)


def require_reduction(reduction: str, dtype: DType) -> None:
    """Check the reduction of a scatter. Raises ShapeError when it is unknown or not defined."""
    require_choice(reduction, ("none", *_COMBINE), "reduction")
    if reduction != "none" and dtype is DType.BOOL:
        raise ShapeError(f"reduction {reduction} is not defined for bool")


def scatter(data: Array, coordinates: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """Return a copy of data with updates written at, or combined with, the given positions.

    Data is viewed as a matrix whose rows the positions select, because numpy's ``ufunc.at`` reads
    out of bounds for more than 32 axes.
    """
    leading = data.shape[: len(coordinates)]
    rows = np.zeros(coordinates[0].shape, np.int64)
    for coordinate, extent in zip(coordinates, leading, strict=True):
        rows = rows * extent + coordinate
    matrix = (math.prod(leading), math.prod(data.shape[len(coordinates) :]))
    changes = updates.reshape(rows.size, matrix[1])
    if reduction == "none":
        result = data.reshape(matrix).copy()
        result[rows.ravel()] = changes
        return result.reshape(data.shape)
    total = np.array(widen(data)).reshape(matrix)
    _COMBINE[reduction].at(total, rows.ravel(), widen(changes))
    return narrow(total, data.dtype).reshape(data.shape)
