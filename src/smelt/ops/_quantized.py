"""What quantisation ops share: the shapes of scales and zero points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ops._shape import (
    normalize_axis,
    require_rank,
    require_same_dtype,
    require_shape,
    shape_text,
)

if TYPE_CHECKING:
    from smelt.ir import Array, Operand
    from smelt.types import Shape, TensorType


_ONE: Final = ((), (1,))
"""Shapes of one number."""


def check_scale(
    x: TensorType, scale: TensorType, zero_point: TensorType | None, axis: int | None
) -> None:
    """Check that scale and zero point are one for the tensor or one for each place of the axis."""
    require_rank(scale, "the scale", 0, 1)
    if scale.shape in _ONE:
        if zero_point is not None and zero_point.shape not in _ONE:
            require_shape(zero_point, scale.shape, "the zero point")
        return
    require_shape(zero_point, scale.shape, "the zero point")
    if axis is None:
        raise ShapeError(
            f"without an axis the scale must be one number, not {shape_text(scale.shape)}"
        )
    require_shape(scale, (x.shape[normalize_axis(axis, x.rank)],), "the scale")


def require_known_scale(scale: Operand | None) -> None:
    """Check that scales, where they are known, are sizes of steps. Raises ShapeError."""
    reason = None if scale is None or scale.value is None else why_no_scale(scale.value)
    if reason is not None:
        raise ShapeError(f"{reason}: quantise the model again")


def why_no_scale(scales: Array) -> str | None:
    """Say which element is not a size of a step, if one is none."""
    bad = np.flatnonzero(~(np.isfinite(scales) & (scales > 0)))
    if not bad.size:
        return None
    place = int(bad[0])
    return (
        f"scale {place} of {scales.size} is {scales.ravel()[place]}; "
        "scales must be positive and finite"
    )


def along_axis(array: Array, rank: int, axis: int | None) -> Array:
    """A scale or zero point, shaped so that it broadcasts onto a tensor of ``rank``."""
    if array.size == 1 or axis is None:
        return array.reshape(())
    shape = [1] * rank
    shape[axis] = array.size
    return array.reshape(shape)


def check_zero_point(
    kind: TensorType, zero_point: TensorType | None, several: Shape, what: str
) -> None:
    """Check that a zero point is one number, or as many as ``several`` allows, of the dtype."""
    if zero_point is None:
        return
    require_same_dtype(kind, zero_point)
    if zero_point.shape not in _ONE:
        require_shape(zero_point, several or (1,), what)


def above_zero(array: Array, zero_point: Array | None, axis: int | None) -> Array:
    """What lies above the zero point, in float64: products of bytes are summed exactly in it."""
    wide = array.astype(np.float64)
    return wide if zero_point is None else wide - along_axis(zero_point, array.ndim, axis)


def wrapped(sums: Array) -> Array:
    """Whole numbers in int32; those beyond wrap around."""
    return np.asarray(sums).astype(np.int64).astype(np.int32)
