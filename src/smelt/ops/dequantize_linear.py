"""DequantizeLinear: integers to floating-point numbers with a scale and a zero point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import floats, integers
from smelt.ops._quantized import along_axis, check_scale, require_known_scale
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    optional_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import operand_at, optional_array, present
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType

_QUANTIZED = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32})


@dataclass(frozen=True)
class DequantizeLinear(Op):
    """``(x - zero_point) * scale``. Inputs are x, scale, and optionally zero_point.

    Shapes: scale and zero point are scalars, or ``[extent of the axis]``; the result's is x's.

    Dtypes: x int8, uint8, int16, uint16 or int32, zero point like x; the result's is the scale's.

    Raises ShapeError: when scale or zero point do not match the axis, or a constant scale is not
    positive and finite.

    Source: ONNX DequantizeLinear-25, without blocked quantisation.
    """

    name: ClassVar[str] = "dequantize_linear"

    axis: int | None = 1
    """Axis of the scales; None for one scale of the tensor, which makes the op elementwise."""

    @property
    @override
    def elementwise(self) -> bool:
        return self.axis is None

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 3)
        x, scale = input_type(self, inputs, 0), input_type(self, inputs, 1)
        zero_point = optional_type(self, inputs, 2)
        require_dtype(x, _QUANTIZED, "the input of dequantize_linear")
        require_dtype(scale, FLOATS, "the scale of dequantize_linear")
        require_same_dtype(x, zero_point)
        check_scale(x, scale, zero_point, self.axis)
        require_known_scale(operand_at(inputs, 1))
        return (TensorType(scale.dtype, x.shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = present(inputs, 0), present(inputs, 1)
        zero = optional_array(inputs, 2)
        steps = x.astype(np.int64)
        if zero is not None:
            steps = steps - along_axis(zero, x.ndim, self.axis)
        wide = along_axis(widen(scale), x.ndim, self.axis)
        return (narrow(steps.astype(wide.dtype) * wide, scale.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1, 2})
        scale = np.array(0.03, np.float32)
        x = integers(2, 17, 5, 7, dtype=np.uint8, high=256)
        yield Case("uint8", cls(), (x, scale, np.array(128, np.uint8)), constants=constants)
        yield Case("no_zero_point", cls(), (x, scale), constants=constants)
        signed = integers(2, 17, 5, 7, dtype=np.int8, low=-128, high=128)
        scales = floats(17, low=0.01, high=0.05, seed=1)
        zeros = integers(17, dtype=np.int8, low=-9, high=9, seed=2)
        yield Case("channels", cls(), (signed, scales, zeros), constants=constants)
        weights = integers(33, 9, dtype=np.int8, low=-128, high=128)
        scales = floats(33, low=0.01, high=0.05, seed=1)
        yield Case("first_axis", cls(axis=0), (weights, scales), constants=frozenset({0, 1}))
        bias = integers(33, low=-99999, high=99999)
        yield Case("int32", cls(), (bias, scale), constants=constants)
        arrays = (signed, np.array(0.03, np.float16), np.array(-3, np.int8))
        yield Case("float16", cls(), arrays, constants=constants)
        whole = cls(axis=None)
        below = np.array(-3, np.int8)
        yield Case("whole_tensor", whole, (signed, scale, below), constants=constants)
        most = np.array(255, np.uint8)
        yield Case("whole_tensor_uint8", whole, (x, scale, most), constants=constants)
