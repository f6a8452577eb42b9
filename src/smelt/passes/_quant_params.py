"""What the passes about quantisation share: reading QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt import ops
from smelt.ir import Value
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ir import Constant, Node


@dataclass(frozen=True, slots=True)
class QuantParams:
    """How real numbers stand for integers: constants for a whole tensor, or along an axis."""

    dtype: DType
    """Of the integers."""
    scale: Value
    zero: Value | None
    axis: int | None

    def equals(self, other: QuantParams) -> bool:
        """Whether both are the same for a whole tensor."""
        return (
            self.axis is None
            and other.axis is None
            and self.dtype is other.dtype
            and elements(self.scale) == elements(other.scale)
            and self.zero_point == other.zero_point
        )

    @property
    def zero_point(self) -> int:
        """The zero point of a whole tensor."""
        return 0 if self.zero is None else int(elements(self.zero)[0])


def quant_params_of(node: Node | None) -> QuantParams | None:
    """The constant steps of a QuantizeLinear or DequantizeLinear in float32; None for others."""
    if node is None or not isinstance(node.op, ops.QuantizeLinear | ops.DequantizeLinear):
        return None
    whole = node.inputs[0] if isinstance(node.op, ops.DequantizeLinear) else node.output
    return _steps(whole, *node.inputs[1:], axis=node.op.axis)


def dequantized(value: Value | None) -> tuple[Value, QuantParams] | None:
    """The integers that a value stands for, with their steps, when DequantizeLinear makes it.

    That of a constant may be folded: then its recipe tells.
    """
    if value is None:
        return None
    node, constant = value.producer, value.constant
    if constant is not None and constant.recipe is not None:
        op, inputs = constant.recipe.op, [_held(c) for c in constant.recipe.inputs]
    elif node is not None:
        op, inputs = node.op, node.inputs
    else:
        return None
    if not isinstance(op, ops.DequantizeLinear) or inputs[0] is None:
        return None
    steps = _steps(*inputs, axis=op.axis)
    return None if steps is None else (inputs[0], steps)


def _held(constant: Constant | None) -> Value | None:
    return None if constant is None else Value(constant.name, constant.type, constant=constant)


def _steps(
    whole: Value | None, scale: Value | None, zero: Value | None = None, *, axis: int | None
) -> QuantParams | None:
    if whole is None or scale is None or scale.constant is None:
        return None
    if zero is not None and zero.constant is None:
        return None
    if scale.tensor.dtype is not DType.FLOAT32:
        return None
    return QuantParams(whole.tensor.dtype, scale, zero, axis)


def elements(value: Value) -> list[float]:
    """The elements of a constant."""
    return [] if value.constant is None else np.ravel(value.constant.array).tolist()
