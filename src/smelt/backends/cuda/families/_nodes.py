"""What products ask of a node's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends.cuda._product import TF32
from smelt.ir import Constant
from smelt.ops.cast import Cast
from smelt.ops.round_mantissa import RoundMantissa
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends._base import Tactic


def as_factor(weights: Constant, dtype: DType, tactic: Tactic) -> Constant:
    """Packed weights in the element type, and to the bits, that the tactic multiplies in."""
    if dtype is not weights.type.dtype:
        weights = Constant.derive(f"{weights.name}.{dtype.value}", Cast(dtype), weights)
    if dtype is DType.FLOAT32 and dict(tactic.parameters).get("precision") == TF32:
        weights = Constant.derive(f"{weights.name}.{TF32}", RoundMantissa(), weights)
    return weights
