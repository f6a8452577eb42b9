"""Reading and writing elements by index: what the gathering and scattering ops share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import IndexRangeError, ShapeError
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import shape_text
from smelt.types import DType, assume_at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, TensorType

_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def integers(start: int, stop: int) -> Array:
    """The integers from ``start`` up to but without ``stop``."""
    return np.asarray(range(start, stop), np.int64)


def positive_indices(indices: Array, extent: int) -> Array:
    """Indices counted from the front of an axis.

    Raises IndexRangeError: naming the first that is outside the axis.
    """
    if (message := _outside(indices, extent)) is not None:
        raise IndexRangeError(message)
    wide = indices.astype(np.int64)
    return np.where(wide < 0, wide + extent, wide)


def _outside(indices: Array, extent: int) -> str | None:
    """What is wrong with the first index that is outside an axis."""
    outside = (indices < -extent) | (indices >= extent)
    if not bool(outside.any()):
        return None
    return f"index {indices[outside][0]} is out of range for an axis of {extent} elements"


def require_indices(operand: Operand | None, extents: Sequence[Dim]) -> None:
    """Check indices, or vectors of as many indices as there are extents, as far as all is known.

    Raises ShapeError: naming the first that is outside its axis.
    """
    if operand is None or operand.value is None:
        return
    value = operand.value
    columns = [value] if len(extents) == 1 else [value[..., k] for k in range(len(extents))]
    for column, extent in zip(columns, extents, strict=True):
        if isinstance(extent, int) and (message := _outside(column, extent)) is not None:
            raise ShapeError(message)


def require_indices_within(indices: TensorType, data: TensorType, axis: int) -> None:
    """Check that indices have no place that data lacks on an axis other than ``axis``.

    What is open is a guard. Raises ShapeError.
    """
    pairs = enumerate(zip(data.shape, indices.shape, strict=True))
    for other, (whole, extent) in pairs:
        if other != axis and not assume_at_least(whole, extent, f"axis {other} of inputs 0 and 1"):
            raise ShapeError(
                f"axis {other} of the indices has {extent} elements, more than the {whole} of "
                f"data {shape_text(data.shape)}"
            )


def coordinates_along_axis(indices: Array, data: Array, axis: int) -> tuple[Array, ...]:
    """For each index the place of an element: the index's own, but for ``axis``, where it stands.

    Raises IndexRangeError: when one is outside the data.
    """
    for place, (mine, theirs) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if place != axis % data.ndim and mine > theirs and indices.size:
            raise IndexRangeError(
                f"the indices have {mine} elements on axis {place}, the data only {theirs}"
            )
    grid: Array = np.asarray(np.indices(indices.shape), np.int64)
    grid[axis] = positive_indices(indices, data.shape[axis])
    return tuple(grid)


def require_reduction(reduction: str, dtype: DType) -> None:
    """Check how a scatter combines. Raises ShapeError."""
    if reduction != "none" and reduction not in _COMBINE:
        raise ShapeError(f"reduction is {reduction!r}; it must be none, {', '.join(_COMBINE)}")
    if reduction != "none" and dtype is DType.BOOL:
        raise ShapeError(f"reduction {reduction} is not defined for bool")


def scatter(data: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """A copy of data in which updates stand at places, or are combined with what is there.

    Places count rows of a matrix: numpy's ``ufunc.at`` reads foreign memory beyond 32 axes.
    """
    leading = data.shape[: len(places)]
    rows = np.zeros(places[0].shape, np.int64)
    for place, extent in zip(places, leading, strict=True):
        rows = rows * extent + place
    matrix = (math.prod(leading), math.prod(data.shape[len(places) :]))
    changes = updates.reshape(rows.size, matrix[1])
    if reduction == "none":
        made = data.reshape(matrix).copy()
        made[rows.ravel()] = changes
        return made.reshape(data.shape)
    total = np.array(widen(data)).reshape(matrix)
    _COMBINE[reduction].at(total, rows.ravel(), widen(changes))
    return narrow(total, data.dtype).reshape(data.shape)
