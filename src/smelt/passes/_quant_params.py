"""Quantization parameters of QuantizeLinear and DequantizeLinear nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from smelt import ops
from smelt.ir import Constant, Node, Value, fix_numbers
from smelt.types import DType


@dataclass(frozen=True, slots=True)
class QuantParams:
    """Constant quantization parameters, for a whole tensor or along an axis."""

    dtype: DType
    """Element type of the quantised tensor."""
    scale: Value
    zero: Value | None
    axis: int | None

    def equals(self, other: QuantParams) -> bool:
        """Return whether both are per-tensor parameters with equal values."""
        return (
            self.axis is None
            and other.axis is None
            and self.dtype is other.dtype
            and elements(self.scale) == elements(other.scale)
            and self.zero_point == other.zero_point
        )

    def fix(self, other: QuantParams | None = None) -> None:
        """Exclude from refits what a pass has read; a scale that ``other`` shares can change."""
        fix_numbers(self.zero)
        if other is not None and self.scale.constant is not other.scale.constant:
            fix_numbers(self.scale, other.scale)

    @property
    def zero_point(self) -> int:
        """The zero point of per-tensor parameters."""
        return 0 if self.zero is None else int(elements(self.zero)[0])


def quant_params_of(node: Node | None) -> QuantParams | None:
    """Return the constant float32 parameters of a QuantizeLinear or DequantizeLinear, or None."""
    if node is None or not isinstance(node.op, ops.QuantizeLinear | ops.DequantizeLinear):
        return None
    quantised = node.inputs[0] if isinstance(node.op, ops.DequantizeLinear) else node.output
    return _quant_params(quantised, *node.inputs[1:], axis=node.op.axis)


def dequantized(value: Value | None) -> tuple[Value, QuantParams] | None:
    """Return the integers from which a value is dequantised, and their parameters, or None.

    If the DequantizeLinear of a constant has been folded, the constant's recipe is read instead.
    """
    if value is None:
        return None
    node, constant = value.producer, value.constant
    if constant is not None and constant.recipe is not None:
        op, inputs = constant.recipe.op, [_constant_value(c) for c in constant.recipe.inputs]
    elif node is not None:
        op, inputs = node.op, node.inputs
    else:
        return None
    if not isinstance(op, ops.DequantizeLinear) or inputs[0] is None:
        return None
    params = _quant_params(*inputs, axis=op.axis)
    return None if params is None else (inputs[0], params)


def _constant_value(constant: Constant | None) -> Value | None:
    return None if constant is None else Value(constant.name, constant.type, constant=constant)


def _quant_params(
    quantised: Value | None, scale: Value | None, zero: Value | None = None, *, axis: int | None
) -> QuantParams | None:
    """Return the parameters if they are constant and the scale is float32; None otherwise."""
    if quantised is None or scale is None or scale.constant is None:
        return None
    if zero is not None and zero.constant is None:
        return None
    if scale.tensor.dtype is not DType.FLOAT32:
        return None
    return QuantParams(quantised.tensor.dtype, scale, zero, axis)


def elements(value: Value) -> list[float]:
    """Return the elements of a constant in row-major order; none for other values."""
    return [] if value.constant is None else np.ravel(value.constant.array).tolist()
