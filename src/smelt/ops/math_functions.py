"""Elementwise mathematical functions of one tensor: roots, exponentials, trigonometry, rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case
from smelt.ops._conformance_data import floats
from smelt.ops._shape import NUMBERS, SIGNED
from smelt.ops._unary import Unary
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class Abs(Unary, function=np.abs):
    """``|x|``.

    Shapes: the input's.

    Dtypes: numbers; the result's is the input's.

    Raises ShapeError: when there is not one numeric input.

    Source: ONNX Abs-13.
    """

    name: ClassVar[str] = "abs"
    allowed: ClassVar[frozenset[DType]] = NUMBERS


@dataclass(frozen=True)
class Neg(Unary, function=np.negative):
    """``-x``.

    Shapes: the input's.

    Dtypes: signed numbers; the result's is the input's.

    Raises ShapeError: when there is not one signed input.

    Source: ONNX Neg-13.
    """

    name: ClassVar[str] = "neg"
    allowed: ClassVar[frozenset[DType]] = SIGNED


@dataclass(frozen=True)
class Sign(Unary, function=np.sign):
    """The sign of the element: -1, 0 or 1.

    Shapes: the input's.

    Dtypes: numbers; the result's is the input's.

    Raises ShapeError: when there is not one numeric input.

    Source: ONNX Sign-13.
    """

    name: ClassVar[str] = "sign"
    allowed: ClassVar[frozenset[DType]] = NUMBERS


@dataclass(frozen=True)
class Reciprocal(Unary):
    """``1 / x``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Reciprocal-13.
    """

    name: ClassVar[str] = "reciprocal"
    domain: ClassVar[tuple[float, float]] = (0.3, 4.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        return 1 / x


@dataclass(frozen=True)
class Sqrt(Unary, function=np.sqrt):
    """``sqrt(x)``; NaN below zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sqrt-13.
    """

    name: ClassVar[str] = "sqrt"
    domain: ClassVar[tuple[float, float]] = (0.0, 9.0)


@dataclass(frozen=True)
class Exp(Unary, function=np.exp):
    """``exp(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Exp-13.
    """

    name: ClassVar[str] = "exp"


@dataclass(frozen=True)
class Log(Unary, function=np.log):
    """``log(x)``; NaN below zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Log-13.
    """

    name: ClassVar[str] = "log"
    domain: ClassVar[tuple[float, float]] = (0.05, 9.0)


@dataclass(frozen=True)
class Erf(Unary):
    """``erf(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Erf-13.
    """

    name: ClassVar[str] = "erf"

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.vectorize(math.erf, otypes=[np.float64])(x)


@dataclass(frozen=True)
class Sin(Unary, function=np.sin):
    """``sin(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sin-22.
    """

    name: ClassVar[str] = "sin"


@dataclass(frozen=True)
class Cos(Unary, function=np.cos):
    """``cos(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Cos-22.
    """

    name: ClassVar[str] = "cos"


@dataclass(frozen=True)
class Tan(Unary, function=np.tan):
    """``tan(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Tan-22.
    """

    name: ClassVar[str] = "tan"
    domain: ClassVar[tuple[float, float]] = (-1.2, 1.2)


@dataclass(frozen=True)
class Asin(Unary, function=np.arcsin):
    """``asin(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Asin-22.
    """

    name: ClassVar[str] = "asin"
    domain: ClassVar[tuple[float, float]] = (-1.0, 1.0)


@dataclass(frozen=True)
class Acos(Unary, function=np.arccos):
    """``acos(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Acos-22.
    """

    name: ClassVar[str] = "acos"
    domain: ClassVar[tuple[float, float]] = (-1.0, 1.0)


@dataclass(frozen=True)
class Atan(Unary, function=np.arctan):
    """``atan(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Atan-22.
    """

    name: ClassVar[str] = "atan"


@dataclass(frozen=True)
class Sinh(Unary, function=np.sinh):
    """``sinh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sinh-22.
    """

    name: ClassVar[str] = "sinh"


@dataclass(frozen=True)
class Cosh(Unary, function=np.cosh):
    """``cosh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Cosh-22.
    """

    name: ClassVar[str] = "cosh"


@dataclass(frozen=True)
class Tanh(Unary, function=np.tanh):
    """``tanh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Tanh-13.
    """

    name: ClassVar[str] = "tanh"


@dataclass(frozen=True)
class Asinh(Unary, function=np.arcsinh):
    """``asinh(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Asinh-22.
    """

    name: ClassVar[str] = "asinh"


@dataclass(frozen=True)
class Acosh(Unary, function=np.arccosh):
    """``acosh(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Acosh-22.
    """

    name: ClassVar[str] = "acosh"
    domain: ClassVar[tuple[float, float]] = (1.0, 9.0)


@dataclass(frozen=True)
class Atanh(Unary, function=np.arctanh):
    """``atanh(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Atanh-22.
    """

    name: ClassVar[str] = "atanh"
    domain: ClassVar[tuple[float, float]] = (-0.97, 0.97)


@dataclass(frozen=True)
class Ceil(Unary, function=np.ceil):
    """The smallest integer that is not less than the element.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Ceil-13.
    """

    name: ClassVar[str] = "ceil"


@dataclass(frozen=True)
class Floor(Unary, function=np.floor):
    """The largest integer that is not greater than the element.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Floor-13.
    """

    name: ClassVar[str] = "floor"


@dataclass(frozen=True)
class Round(Unary, function=np.rint):
    """The nearest integer; halves are rounded to the even one.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Round-22.
    """

    name: ClassVar[str] = "round"


_MANTISSA_BITS: Final = 23
"""Stored mantissa bits of a float32, without the implicit leading bit."""


"""Stored mantissa bits of a float32, without the implicit leading bit."""


@dataclass(frozen=True)
class RoundMantissa(Unary):
    """The nearest number with a mantissa of ``bits`` bits; halves are rounded away from zero.

    With 10 bits this is TF32, the format in which tensor cores multiply float32 inputs.

    Shapes: the input's.

    Dtypes: float32.

    Raises ShapeError: when there is not one float32 input, or ``bits`` is not from 1 to 22.

    Source: PTX ISA, cvt.rna.tf32.f32.
    """

    name: ClassVar[str] = "round_mantissa"
    allowed: ClassVar[frozenset[DType]] = frozenset({DType.FLOAT32})

    bits: int = 10
    """Mantissa bits that are kept, without the implicit leading bit."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if not 0 < self.bits < _MANTISSA_BITS:
            raise ShapeError(f"float32 cannot be rounded to {self.bits} mantissa bits")
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
