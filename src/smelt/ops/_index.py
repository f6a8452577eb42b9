"""Reading and writing elements by index: what the gathering and scattering ops share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ir import Array

_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def integers(start: int, stop: int) -> Array:
    """The integers from ``start`` up to but without ``stop``."""
    return np.asarray(range(start, stop), np.int64)


def places_of(shape: tuple[int, ...]) -> list[Array]:
    """For each axis, the index of every element of a tensor of the shape."""
    grids: Array = np.asarray(np.indices(shape))
    return [grids[axis] for axis in range(len(shape))]


def positive_indices(indices: Array, extent: int) -> Array:
    """Indices counted from the front of an axis. Raises ShapeError when one is outside it."""
    outside = (indices < -extent) | (indices >= extent)
    if bool(outside.any()):
        raise ShapeError(f"index {indices[outside][0]} is outside an axis of {extent} elements")
    return np.where(indices < 0, indices + extent, indices).astype(np.int64)


def require_reduction(reduction: str, dtype: DType) -> None:
    """Check how a scatter combines. Raises ShapeError."""
    if reduction != "none" and reduction not in _COMBINE:
        raise ShapeError(f"reduction {reduction!r}; it must be none, {', '.join(_COMBINE)}")
    if reduction != "none" and dtype is DType.BOOL:
        raise ShapeError(f"reduction {reduction} of bool elements")


def scatter(data: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """A copy of data in which updates stand at places, or are combined with what is there."""
    made = data.copy()
    if reduction == "none":
        made[places] = updates
    else:
        _COMBINE[reduction].at(made, places, updates)
    return made
