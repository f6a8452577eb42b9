"""Activation functions of one input, of two (PRelu), and Clip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from smelt.ir import Array, Case, Operand
from smelt.ops._base import Elementwise
from smelt.ops._conformance_data import HALF_TOLERANCE, floats, integers
from smelt.ops._reference_numerics import ERF_OPERATIONS, erf, narrow, softplus, widen
from smelt.ops._shape import (
    FLOATS,
    NUMBERS,
    SIGNED,
    input_types,
    optional_type,
    require_broadcast,
    require_choice,
    require_scalar,
)
from smelt.ops._shape_operands import input_at, present
from smelt.ops._unary import Unary
from smelt.types import DType, ValueType, override


class Relu(Unary):
    """``max(x, 0)``; NaN stays NaN.

    Shapes: the input's.

    Dtypes: signed numbers; the result's is the input's.

    Raises ShapeError: when there is not one signed input.

    Source: ONNX Relu-14.
    """

    allowed: ClassVar[frozenset[DType]] = SIGNED

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.maximum(x, x.dtype.type(0))


class LeakyRelu(Unary):
    """``x`` where it is not negative, else ``alpha * x``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX LeakyRelu-16.
    """

    variants = ({"alpha": 0.3}, {"alpha": -1.5})

    alpha: float = 0.01
    """Slope of the negative side."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(x < 0, x * x.dtype.type(self.alpha), x)


class ThresholdedRelu(Unary):
    """``x`` where it is above ``alpha``, else zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX ThresholdedRelu-22.
    """

    variants = ({"alpha": -0.5},)

    alpha: float = 1.0
    """The threshold."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(x > self.alpha, x, x.dtype.type(0))


class Elu(Unary):
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Elu-22.
    """

    variants = ({"alpha": 0.4},)

    alpha: float = 1.0
    """Scale of the negative side."""

    @override
    def _apply(self, x: Array, /) -> Any:
        negative = x.dtype.type(self.alpha) * np.expm1(np.minimum(x, x.dtype.type(0)))
        return np.where(x > 0, x, negative)


class Celu(Unary):
    """``max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Celu-12.
    """

    variants = ({"alpha": 2.0},)

    alpha: float = 1.0
    """Scale of the negative side; not zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        zero, alpha = x.dtype.type(0), x.dtype.type(self.alpha)
        return np.maximum(x, zero) + np.minimum(zero, alpha * np.expm1(x / alpha))


class Selu(Unary):
    """``gamma * x`` where it is positive, else ``gamma * alpha * (exp(x) - 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Selu-22.
    """

    variants = ({"alpha": 2.0, "gamma": 0.5},)

    alpha: float = 1.67326319217681884765625
    """Scale of the negative side."""
    gamma: float = 1.05070102214813232421875
    """Scale of the result."""

    @override
    def _apply(self, x: Array, /) -> Any:
        negative = x.dtype.type(self.alpha) * np.expm1(np.minimum(x, x.dtype.type(0)))
        return x.dtype.type(self.gamma) * np.where(x > 0, x, negative)


class Gelu(Unary):
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or its approximation with tanh.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input, or approximate is unknown.

    Source: ONNX Gelu-20.
    """

    variants = ({"approximate": "tanh"},)
    operations = ERF_OPERATIONS

    approximate: str = "none"
    """"none", or "tanh" for ``tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))`` in place of erf."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_choice(self.approximate, ("none", "tanh"), "approximate of gelu")
        return super().infer(inputs)

    @override
    def _apply(self, x: Array, /) -> Any:
        half = x.dtype.type(0.5)
        if self.approximate == "tanh":
            inner = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x**3)
            return half * x * (1 + np.tanh(inner))
        return half * x * (1 + erf(x * math.sqrt(0.5)).astype(x.dtype))


class Sigmoid(Unary):
    """``1 / (1 + exp(-x))``, without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sigmoid-13.
    """

    case_range: ClassVar[tuple[float, float]] = (-12.0, 12.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        small = np.exp(-np.abs(x))
        return np.where(x < 0, small, x.dtype.type(1)) / (1 + small)


class HardSigmoid(Unary):
    """``alpha * x + beta`` clipped to 0 and 1.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX HardSigmoid-22.
    """

    variants = ({"alpha": 1 / 6, "beta": 0.5}, {"alpha": 0.7, "beta": 0.1})

    alpha: float = 0.2
    """Slope."""
    beta: float = 0.5
    """Value at zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        line = x * x.dtype.type(self.alpha) + x.dtype.type(self.beta)
        return np.clip(line, 0, 1)


class Swish(Unary):
    """``x / (1 + exp(-alpha * x))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Swish-24.
    """

    variants = ({"alpha": 1.702},)

    case_range: ClassVar[tuple[float, float]] = (-8.0, 8.0)

    alpha: float = 1.0
    """Steepness; 1 gives SiLU."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return x / (1 + np.exp(-x.dtype.type(self.alpha) * x))


class HardSwish(Unary):
    """``x * clip(x / 6 + 1 / 2, 0, 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX HardSwish-22.
    """

    @override
    def _apply(self, x: Array, /) -> Any:
        return x * np.clip(x * x.dtype.type(1 / 6) + x.dtype.type(0.5), 0, 1)


class Mish(Unary):
    """``x * tanh(log(1 + exp(x)))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Mish-22.
    """

    case_range: ClassVar[tuple[float, float]] = (-20.0, 20.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        return x * np.tanh(softplus(x))


class Softplus(Unary, function=softplus):
    """``log(1 + exp(x))``, without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Softplus-22.
    """

    case_range: ClassVar[tuple[float, float]] = (-25.0, 25.0)


class Softsign(Unary):
    """``x / (1 + |x|)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Softsign-22.
    """

    @override
    def _apply(self, x: Array, /) -> Any:
        return x / (1 + np.abs(x))


class Shrink(Unary):
    """``x + bias`` if ``x < -lambd``, ``x - bias`` if ``x > lambd``, otherwise zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Shrink-9.
    """

    variants = ({"bias": 1.5, "lambd": 1.5}, {"bias": 0.5, "lambd": -1.0})

    bias: float = 0.0
    """Amount that is subtracted from the magnitude."""
    lambd: float = 0.5
    """Half the width of the interval whose elements become zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        bias = x.dtype.type(self.bias)
        above: Array = np.where(x > self.lambd, x - bias, np.zeros_like(x))
        return np.where(x < -self.lambd, x + bias, above)


class Clip(Elementwise):
    """``min(max(x, low), high)``; NaN stays NaN.

    Inputs are x, and optionally low and high. If low is above high the result is high.

    Shapes: low and high are scalars, or ``[1]``; the result's is x's.

    Dtypes: numbers, one for all.

    Raises ShapeError: when a limit is not a scalar.

    Source: ONNX Clip-13.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, 3, NUMBERS)
        for index, what in ((1, "lower"), (2, "upper")):
            require_scalar(optional_type(self, inputs, index), f"the {what} limit of clip")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        y, low, high = present(inputs, 0), input_at(inputs, 1), input_at(inputs, 2)
        # Comparisons, unlike maximum and minimum, keep y if a limit is NaN.
        y = y if low is None else np.where(y < low.reshape(()), low.reshape(()), y)
        y = y if high is None else np.where(y > high.reshape(()), high.reshape(()), y)
        return (np.asarray(y),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1, 2})
        six, half = np.float32(6), np.float16(0.5)
        x = floats(2, 17, 5, 7, low=-9, high=9)
        yield Case("relu6", cls(), (x, np.array(0, np.float32), np.array(six)), constants=constants)
        yield Case("below", cls(), (x, np.array(-six), None), constants=constants)
        yield Case("above", cls(), (x, None, np.array(six)), constants=constants)
        yield Case("crossed", cls(), (x, np.array(six), np.array(-six)), constants=constants)
        yield Case("not_limited", cls(), (x, None, None))
        arrays = (floats(33, dtype=np.float16), np.array(-half), np.array(half))
        yield Case("float16", cls(), arrays, constants=constants)
        limits = (np.array(-3, np.int32), np.array(4, np.int32))
        yield Case("int32", cls(), (integers(33, low=-9, high=9), *limits), constants=constants)


class PRelu(Elementwise):
    """``x`` where it is not negative, otherwise ``slope * x``. Inputs are x and slope.

    Shapes: the slope broadcasts to x (``[C, 1, 1]`` for one per channel); the result's is x's.

    Dtypes: floating-point, one for both.

    Raises ShapeError: when the slope does not broadcast to x.

    Source: ONNX PRelu-16.
    """

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, slope = input_types(self, inputs, 2, dtypes=FLOATS)
        require_broadcast(slope, x.shape, "the slope of prelu")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array, slope = present(inputs, 0), widen(present(inputs, 1))
        x = widen(array)
        return (narrow(np.where(x < 0, x * slope, x), array.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1})
        slope = floats(17, 1, 1, seed=1)
        yield Case("channels", cls(), (floats(2, 17, 5, 7), slope), constants=constants)
        yield Case("shared", cls(), (floats(3, 33), floats(1, seed=1)), constants=constants)
        yield Case("every_element", cls(), (floats(5, 9), floats(5, 9, seed=1)))
        yield Case("empty_batch", cls(), (floats(0, 9), floats(9, seed=1)), constants=constants)
        half = (floats(1, 9, 3, 3, dtype=np.float16), floats(9, 1, 1, dtype=np.float16, seed=1))
        yield Case("float16", cls(), half, HALF_TOLERANCE, constants)
