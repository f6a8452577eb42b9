"""What products ask of a node's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.ir import Constant
from smelt.ops.cast import Cast

if TYPE_CHECKING:
    from smelt.backends._base import Tactic


def as_factor(weights: Constant, tactic: Tactic) -> Constant:
    """Packed weights in the element type that the tactic multiplies in: its first input's."""
    first = tactic.inputs[0]
    if first is None or first.dtype is weights.type.dtype:
        return weights
    return Constant.derive(f"{weights.name}.{first.dtype.value}", Cast(first.dtype), weights)
