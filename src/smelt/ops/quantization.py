"""Floats to bytes and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import floats, integers
from smelt.ops._quantized import along_axis, check_scale, require_known_scale
from smelt.ops._reference_numerics import narrow, truncate, widen
from smelt.ops._shape import FLOATS, input_types, optional_type, require_dtype, require_same_dtype
from smelt.ops._shape_operands import input_at, present
from smelt.types import DType, TensorType, ValueType, override

_RESULTS = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})


class LinearQuantization(BuiltinOp):
    """Conversion between floats and integers with scales."""

    is_recipe_step = True

    axis: int | None = 1
    """Axis of the scales; None for one scale of the tensor, which makes the op elementwise."""

    @property
    @override
    def elementwise(self) -> bool:
        return self.axis is None


class QuantizeLinear(LinearQuantization):
    """``saturate(round(x / scale) + zero_point)``.

    Halves are rounded to even, and NaN becomes the smallest integer. Inputs are x, scale, and
    optionally zero_point. If one scale applies to the tensor and x is already divided by it, the
    scale may be absent.

    Shapes: scale and zero point are scalars, or ``[extent of the axis]``; the result's is x's.

    Dtypes: x floating-point or int32, scale floating-point; the result's is that of the zero
    point, or ``output_dtype`` without one.

    Raises ShapeError: when scale or zero point do not match the axis, a constant scale is not
    positive and finite, or the dtype of the result is not an integer type of 8 or 16 bits.

    Source: ONNX QuantizeLinear-25, without blocked quantisation.
    """

    output_dtype: DType | None = None
    """Element type of the result without a zero point; None for uint8."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, *_ = input_types(self, inputs, 2 if self.axis is not None else 1, 3)
        scale = optional_type(self, inputs, 1) or TensorType(DType.FLOAT32, ())
        zero_point = optional_type(self, inputs, 2)
        require_dtype(x, FLOATS | {DType.INT32}, "the input of quantize_linear")
        require_dtype(scale, FLOATS, "the scale of quantize_linear")
        check_scale(x, scale, zero_point, self.axis)
        require_known_scale(input_at(inputs, 1))
        dtype = self.output_dtype or DType.UINT8
        if zero_point is not None:
            if self.output_dtype not in {None, zero_point.dtype}:
                raise ShapeError(
                    f"output_dtype is {dtype.value}, but the zero point is "
                    f"{zero_point.dtype.value}; both must be equal"
                )
            dtype = zero_point.dtype
        result = TensorType(dtype, x.shape)
        require_dtype(result, _RESULTS, "the result of quantize_linear")
        return (result,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = widen(present(inputs, 0)), input_at(inputs, 1)
        scale = np.ones((), np.float32) if scale is None else widen(scale)
        zero = input_at(inputs, 2)
        dtype = (self.output_dtype or DType.UINT8).numpy if zero is None else zero.dtype
        limits = np.iinfo(dtype)
        with np.errstate(all="ignore"):
            steps = np.rint(x.astype(scale.dtype) / along_axis(scale, x.ndim, self.axis))
        if zero is not None:
            steps = steps + along_axis(zero, x.ndim, self.axis).astype(scale.dtype)
        bounded = np.clip(np.nan_to_num(steps, nan=limits.min), limits.min, limits.max)
        return (np.asarray(bounded).astype(dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1, 2})
        x = floats(2, 17, 5, 7, low=-4, high=4)
        scale = np.array(0.03, np.float32)
        yield Case("uint8", cls(), (x, scale, np.array(128, np.uint8)), constants=constants)
        yield Case("int8", cls(), (x, scale, np.array(-3, np.int8)), constants=constants)
        yield Case("no_zero_point", cls(), (x, scale), constants=constants)
        op = cls(output_dtype=DType.INT8)
        yield Case("output_dtype", op, (x, scale), constants=constants)
        scales = floats(17, low=0.01, high=0.05, seed=1)
        zeros = integers(17, dtype=np.int8, low=-9, high=9, seed=2)
        yield Case("channels", cls(), (x, scales, zeros), constants=constants)
        arrays = (floats(9, 33), floats(33, low=0.001, high=0.01, seed=1), np.zeros(33, np.uint8))
        yield Case("last_axis", cls(axis=-1), arrays, constants=constants)
        halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 300, -300], np.float32)
        arrays = (halves, np.array(1, np.float32), np.array(10, np.uint8))
        yield Case("halves_to_even", cls(), arrays, constants=constants)
        yield Case("int16", cls(), (x, scale / 99, np.array(5, np.int16)), constants=constants)
        whole = cls(axis=None)
        yield Case("whole_tensor", whole, (x, scale, np.array(7, np.uint8)), constants=constants)
        yield Case("whole_int8", whole, (x, scale, np.array(-7, np.int8)), constants=constants)
        yield Case("in_steps", whole, (x * 30, None, np.array(7, np.uint8)), constants=constants)
        strange = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.25, 0.75], np.float32)
        for zero in (np.array(9, np.uint8), np.array(-9, np.int8), np.array(9, np.int16)):
            name = f"no_numbers_{zero.dtype.name}"
            half = np.array(0.5, np.float32)
            yield Case(name, whole, (strange, half, zero), constants=constants)


_QUANTIZED = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32})


class DequantizeLinear(LinearQuantization):
    """``(x - zero_point) * scale``. Inputs are x, scale, and optionally zero_point.

    Shapes: scale and zero point are scalars, or ``[extent of the axis]``; the result's is x's.

    Dtypes: x int8, uint8, int16, uint16 or int32, zero point like x; the result's is the scale's.

    Raises ShapeError: when scale or zero point do not match the axis, or a constant scale is not
    positive and finite.

    Source: ONNX DequantizeLinear-25, without blocked quantisation.
    """

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, scale = input_types(self, inputs, 2, 3)
        zero_point = optional_type(self, inputs, 2)
        require_dtype(x, _QUANTIZED, "the input of dequantize_linear")
        require_dtype(scale, FLOATS, "the scale of dequantize_linear")
        require_same_dtype(x, zero_point)
        check_scale(x, scale, zero_point, self.axis)
        require_known_scale(input_at(inputs, 1))
        return (TensorType(scale.dtype, x.shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = present(inputs, 0), present(inputs, 1)
        zero = input_at(inputs, 2)
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


class DynamicQuantizeLinear(BuiltinOp):
    """Quantisation to uint8 with a range that includes zero and all elements.

    Results are the quantised tensor, its scale and its zero point.

    Shapes: the quantised tensor has that of the input; scale and zero point are scalars.

    Dtypes: float32 gives uint8, float32 and uint8.

    Raises ShapeError: when there is not one float32 input.

    Source: ONNX DynamicQuantizeLinear-11; for a tensor of zeros the scale is 1.
    """

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes={DType.FLOAT32})
        scale, zero_point = TensorType(DType.FLOAT32, ()), TensorType(DType.UINT8, ())
        return (TensorType(DType.UINT8, x.shape), scale, zero_point)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        least = np.minimum(x.min(initial=0), np.float32(0))
        largest = np.maximum(x.max(initial=0), np.float32(0))
        scale = np.float32(1)
        if largest > least:
            scale = np.float32((largest - least) / np.float32(255))
        zero_point = truncate(np.rint(-least / scale), np.dtype(np.uint8))
        steps = truncate(np.rint(x / scale) + zero_point, np.dtype(np.uint8))
        return (steps, np.asarray(scale, np.float32), zero_point)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("both_signs", cls(), (floats(2, 17, 5, low=-3, high=5),))
        yield Case("positive", cls(), (floats(33, low=1, high=5),))
        yield Case("negative", cls(), (floats(9, 3, low=-5, high=-1),))
        yield Case("zeros", cls(), (np.zeros((3, 3), np.float32),))
        strange = np.array([[1, -2, np.nan], [3, np.inf, 0]], np.float32)
        yield Case("not a number", cls(), (strange,))
