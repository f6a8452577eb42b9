"""What products ask of a node's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.ir import Constant
from smelt.ops.cast import Cast

if TYPE_CHECKING:
    from smelt.types import DType


def as_factor(weights: Constant, dtype: DType) -> Constant:
    """Packed weights in the element type that the tactic multiplies in."""
    if dtype is weights.type.dtype:
        return weights
    return Constant.derive(f"{weights.name}.{dtype.value}", Cast(dtype), weights)
