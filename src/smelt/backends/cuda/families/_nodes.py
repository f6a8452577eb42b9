"""What products ask of a node's factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends.cuda._costs import count_of
from smelt.backends.cuda._product import TF32
from smelt.backends.cuda._reach import MOST_ELEMENTS
from smelt.ir import Constant
from smelt.ops.cast import Cast
from smelt.ops.round_mantissa import RoundMantissa
from smelt.ops.transpose import Transpose
from smelt.types import DType, Layout, TensorFormat

if TYPE_CHECKING:
    from smelt.backends._base import Tactic
    from smelt.ir import Value


def format_of_factor(value: Value) -> TensorFormat:
    """How a factor is stored: it is read through any strides; only transposes make such windows.

    Of larger ones a copy is made: strides along any axis may go further than 32 bits count.
    """
    made = value.producer
    turned = made is not None and isinstance(made.op, Transpose) and value.constant is None
    is_near = count_of(value) <= MOST_ELEMENTS
    layout = Layout.STRIDED if turned and is_near else Layout.LINEAR
    return TensorFormat(value.tensor.dtype, layout)


def as_factor(weights: Constant, dtype: DType, tactic: Tactic) -> Constant:
    """Packed weights in the element type, and to the bits, that the tactic multiplies in."""
    if dtype is not weights.type.dtype:
        weights = Constant.derive(f"{weights.name}.{dtype.value}", Cast(dtype), weights)
    if dtype is DType.FLOAT32 and dict(tactic.parameters).get("precision") == TF32:
        weights = Constant.derive(f"{weights.name}.{TF32}", RoundMantissa(), weights)
    return weights
