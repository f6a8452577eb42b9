"""Elementwise mathematical functions of one tensor: roots, exponentials, trigonometry, rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._conformance_data import floats
from smelt.ops._reference_numerics import ERF_OPERATIONS, erf
from smelt.ops._shape import NUMBERS, SIGNED
from smelt.ops._unary import Unary
from smelt.types import DType, ValueType, override


class Abs(Unary, function=np.abs):
    """``|x|``.

    Shapes: the input's.

    Dtypes: numbers; the result's is the input's.

    Raises ShapeError: when there is not one numeric input.

    Source: ONNX Abs-13.
    """

    allowed: ClassVar[frozenset[DType]] = NUMBERS


class Neg(Unary, function=np.negative):
    """``-x``.

    Shapes: the input's.

    Dtypes: signed numbers; the result's is the input's.

    Raises ShapeError: when there is not one signed input.

    Source: ONNX Neg-13.
    """

    allowed: ClassVar[frozenset[DType]] = SIGNED


class Sign(Unary, function=np.sign):
    """The sign of the element: -1, 0 or 1.

    Shapes: the input's.

    Dtypes: numbers; the result's is the input's.

    Raises ShapeError: when there is not one numeric input.

    Source: ONNX Sign-13.
    """

    allowed: ClassVar[frozenset[DType]] = NUMBERS


class Reciprocal(Unary, function=np.reciprocal):
    """``1 / x``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Reciprocal-13.
    """

    case_range: ClassVar[tuple[float, float]] = (0.3, 4.0)


class Sqrt(Unary, function=np.sqrt):
    """``sqrt(x)``; NaN below zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sqrt-13.
    """

    case_range: ClassVar[tuple[float, float]] = (0.0, 9.0)


class Exp(Unary, function=np.exp):
    """``exp(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Exp-13.
    """


class Log(Unary, function=np.log):
    """``log(x)``; NaN below zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Log-13.
    """

    case_range: ClassVar[tuple[float, float]] = (0.05, 9.0)


class Erf(Unary, function=erf):
    """``erf(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Erf-13.
    """

    operations = ERF_OPERATIONS


class Sin(Unary, function=np.sin):
    """``sin(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sin-22.
    """


class Cos(Unary, function=np.cos):
    """``cos(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Cos-22.
    """


class Tan(Unary, function=np.tan):
    """``tan(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Tan-22.
    """

    case_range: ClassVar[tuple[float, float]] = (-1.2, 1.2)


class Asin(Unary, function=np.arcsin):
    """``asin(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Asin-22.
    """

    case_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)


class Acos(Unary, function=np.arccos):
    """``acos(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Acos-22.
    """

    case_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)


class Atan(Unary, function=np.arctan):
    """``atan(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Atan-22.
    """


class Sinh(Unary, function=np.sinh):
    """``sinh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sinh-22.
    """


class Cosh(Unary, function=np.cosh):
    """``cosh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Cosh-22.
    """


class Tanh(Unary, function=np.tanh):
    """``tanh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Tanh-13.
    """


class Asinh(Unary, function=np.arcsinh):
    """``asinh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Asinh-22.
    """


class Acosh(Unary, function=np.arccosh):
    """``acosh(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Acosh-22.
    """

    case_range: ClassVar[tuple[float, float]] = (1.0, 9.0)


class Atanh(Unary, function=np.arctanh):
    """``atanh(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Atanh-22.
    """

    case_range: ClassVar[tuple[float, float]] = (-0.97, 0.97)


class Ceil(Unary, function=np.ceil):
    """The smallest integer that is not less than the element.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Ceil-13.
    """


class Floor(Unary, function=np.floor):
    """The largest integer that is not greater than the element.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Floor-13.
    """


class Round(Unary, function=np.rint):
    """The nearest integer; halves are rounded to the even one.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Round-22.
    """


_MANTISSA_BITS: Final = 23
"""Stored mantissa bits of a float32, without the implicit leading bit."""


class RoundMantissa(Unary):
    """The nearest number with a mantissa of ``bits`` bits; halves are rounded away from zero.

    With 10 bits this is TF32, the format in which tensor cores multiply float32 inputs.

    Shapes: the input's.

    Dtypes: float32.

    Raises ShapeError: when there is not one float32 input, or ``bits`` is not from 1 to 22.

    Source: PTX ISA, cvt.rna.tf32.f32.
    """

    allowed: ClassVar[frozenset[DType]] = frozenset({DType.FLOAT32})

    bits: int = 10
    """Mantissa bits that are kept, without the implicit leading bit."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if not 0 < self.bits < _MANTISSA_BITS:
            raise ShapeError(f"bits is {self.bits}; it must be from 1 to {_MANTISSA_BITS - 1}")
        return super().infer(inputs)

    @override
    def _apply(self, x: Array, /) -> Any:
        half = np.uint32(1 << (_MANTISSA_BITS - 1 - self.bits))
        bits = np.ascontiguousarray(x).view(np.uint32) + half
        rounded = (bits & ~(2 * half - np.uint32(1))).view(np.float32).reshape(x.shape)
        return np.where(np.isfinite(x), rounded, x)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        largest = np.finfo(np.float32).max
        edges = [np.inf, -np.inf, np.nan, largest, -largest, 0.0, -0.0, 1e-40, 1 + 2**-11]
        yield Case("ten_bits", cls(), (floats(17, 33, low=-4.0, high=4.0),))
        yield Case("one_bit", cls(1), (floats(5, 7, low=-4.0, high=4.0, seed=1),))
        yield Case("edges", cls(), (np.array(edges, np.float32),))
