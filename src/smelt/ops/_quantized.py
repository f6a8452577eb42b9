"""Checks of scales and zero points, and arithmetic of the quantisation ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ops._shape import (
    SHORT_INTEGERS,
    input_type,
    normalize_axis,
    optional_type,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_shape,
    shape_text,
)
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ir import Array, Op, Operand
    from smelt.types import Shape, TensorType


_ONE: Final = ((), (1,))
"""Shapes of a tensor with one number."""


def check_scale(
    x: TensorType, scale: TensorType, zero_point: TensorType | None, axis: int | None
) -> None:
    """Check that scale and zero point are one number each, or vectors along the axis.

    Raises ShapeError.
    """
    require_rank(scale, "the scale", 0, 1)
    if scale.shape in _ONE:
        if zero_point is not None and zero_point.shape not in _ONE:
            require_shape(zero_point, scale.shape, "the zero point")
        return
    require_shape(zero_point, scale.shape, "the zero point")
    if axis is None:
        raise ShapeError(
            f"the scale has shape {shape_text(scale.shape)}; without an axis it must be one number"
        )
    require_shape(scale, (x.shape[normalize_axis(axis, x.rank)],), "the scale")


def require_known_scale(scale: Operand | None) -> None:
    """Check that constant scales are positive and finite. Raises ShapeError."""
    if scale is None or scale.elements is None:
        return
    if (reason := invalid_scale_reason(scale.elements)) is not None:
        raise ShapeError(f"{reason}; quantise the model again")


def invalid_scale_reason(scales: Array) -> str | None:
    """Return a message that names the first scale that is not positive and finite, or None."""
    bad = np.flatnonzero(~(np.isfinite(scales) & (scales > 0)))
    if not bad.size:
        return None
    position = int(bad[0])
    return (
        f"the scale at index {position} is {scales.ravel()[position]}; "
        "scales must be positive and finite"
    )


def along_axis(array: Array, rank: int, axis: int | None) -> Array:
    """Return a scale or zero point reshaped to broadcast to a tensor of ``rank``."""
    if array.size == 1 or axis is None:
        return array.reshape(())
    shape = [1] * rank
    shape[axis] = array.size
    return array.reshape(shape)


def check_integer_product(
    op: Op, inputs: Sequence[Operand | None], a: tuple[str, Shape], b: tuple[str, Shape]
) -> None:
    """Check an exact product of bytes: inputs 0 and 1, their zero points, and an int32 bias.

    ``a`` and ``b`` are name and shape of zero points of several numbers; each may also be one
    number. The bias has the shape in ``b``. Raises ShapeError.
    """
    for index, (name, shape) in enumerate((a, b)):
        kind, zero_point = input_type(op, inputs, index), optional_type(op, inputs, index + 2)
        require_dtype(kind, SHORT_INTEGERS, f"input {index} of {op.name}")
        require_same_dtype(kind, zero_point)
        if zero_point is not None and zero_point.shape not in _ONE:
            require_shape(zero_point, shape or (1,), name)
    bias = optional_type(op, inputs, 4)
    if bias is not None:
        require_dtype(bias, {DType.INT32}, f"the bias of {op.name}")
        require_shape(bias, b[1], f"the bias of {op.name}")


def subtract_zero_point(array: Array, zero_point: Array | None, axis: int | None) -> Array:
    """Subtract the zero point, in float64, in which sums of products of bytes are exact."""
    wide = array.astype(np.float64)
    return wide if zero_point is None else wide - along_axis(zero_point, array.ndim, axis)


def wrap_to_int32(sums: Array) -> Array:
    """Convert integers to int32 with wrap-around."""
    return np.asarray(sums).astype(np.int64).astype(np.int32)
