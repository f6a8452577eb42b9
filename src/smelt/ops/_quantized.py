"""What quantisation ops share: the shapes of scales and zero points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.ops._shape import normalize_axis, require_rank, require_shape

if TYPE_CHECKING:
    from smelt.ir import Array
    from smelt.types import TensorType


def check_scale(x: TensorType, scale: TensorType, zero_point: TensorType | None, axis: int) -> None:
    """Check that scale and zero point are one for the tensor or one for each place of the axis."""
    require_rank(scale, "the scale", 0, 1)
    require_shape(zero_point, scale.shape, "the zero point")
    if scale.rank == 1 and scale.shape != (1,):
        require_shape(scale, (x.shape[normalize_axis(axis, x.rank)],), "the scale")


def along_axis(array: Array, rank: int, axis: int) -> Array:
    """A scale or zero point, shaped so that it broadcasts onto a tensor of ``rank``."""
    if array.size == 1:
        return array.reshape(())
    shape = [1] * rank
    shape[axis] = array.size
    return array.reshape(shape)
