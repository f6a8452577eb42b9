"""Elementwise activation functions of one tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ops._shape import SIGNED
from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from smelt.ir import Array, Operand
    from smelt.types import DType, ValueType


@dataclass(frozen=True)
class Relu(Unary):
    """``max(x, 0)``; NaN stays NaN.

    Shapes: the input's.

    Dtypes: signed numbers; the result's is the input's.

    Raises ShapeError: when there is not one signed input.

    Source: ONNX Relu-14.
    """

    name: ClassVar[str] = "relu"
    allowed: ClassVar[frozenset[DType]] = SIGNED

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.maximum(x, x.dtype.type(0))


@dataclass(frozen=True)
class LeakyRelu(Unary):
    """``x`` where it is not negative, else ``alpha * x``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX LeakyRelu-16.
    """

    name: ClassVar[str] = "leaky_relu"

    alpha: float = 0.01
    """Slope of the negative side."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(x < 0, x * x.dtype.type(self.alpha), x)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=0.3)
        yield cls(alpha=-1.5)


@dataclass(frozen=True)
class ThresholdedRelu(Unary):
    """``x`` where it is above ``alpha``, else zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX ThresholdedRelu-22.
    """

    name: ClassVar[str] = "thresholded_relu"

    alpha: float = 1.0
    """The threshold."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(x > self.alpha, x, x.dtype.type(0))

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=-0.5)


@dataclass(frozen=True)
class Elu(Unary):
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Elu-22.
    """

    name: ClassVar[str] = "elu"

    alpha: float = 1.0
    """Scale of the negative side."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(
            x > 0, x, x.dtype.type(self.alpha) * np.expm1(np.minimum(x, x.dtype.type(0)))
        )

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=0.4)


@dataclass(frozen=True)
class Celu(Unary):
    """``max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Celu-12.
    """

    name: ClassVar[str] = "celu"

    alpha: float = 1.0
    """Scale of the negative side; not zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        zero, alpha = x.dtype.type(0), x.dtype.type(self.alpha)
        return np.maximum(x, zero) + np.minimum(zero, alpha * np.expm1(x / alpha))

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=2.0)


@dataclass(frozen=True)
class Selu(Unary):
    """``gamma * x`` where it is positive, else ``gamma * alpha * (exp(x) - 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Selu-22.
    """

    name: ClassVar[str] = "selu"

    alpha: float = 1.67326319217681884765625
    """Scale of the negative side."""
    gamma: float = 1.05070102214813232421875
    """Scale of the result."""

    @override
    def _apply(self, x: Array, /) -> Any:
        negative = x.dtype.type(self.alpha) * np.expm1(np.minimum(x, x.dtype.type(0)))
        return x.dtype.type(self.gamma) * np.where(x > 0, x, negative)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=2.0, gamma=0.5)


@dataclass(frozen=True)
class Gelu(Unary):
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or its approximation with tanh.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input, or approximate is unknown.

    Source: ONNX Gelu-20.
    """

    name: ClassVar[str] = "gelu"

    approximate: str = "none"
    """"none", or "tanh" for ``tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))`` in place of erf."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if self.approximate not in {"none", "tanh"}:
            raise ShapeError(
                f"approximate of gelu is {self.approximate!r}; it must be 'none' or 'tanh'"
            )
        return super().infer(inputs)

    @override
    def _apply(self, x: Array, /) -> Any:
        half = x.dtype.type(0.5)
        if self.approximate == "tanh":
            inner = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x**3)
            return half * x * (1 + np.tanh(inner))
        erf = np.vectorize(math.erf, otypes=[np.float64])(x * math.sqrt(0.5))
        return half * x * (1 + erf.astype(x.dtype))

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(approximate="tanh")


@dataclass(frozen=True)
class Sigmoid(Unary):
    """``1 / (1 + exp(-x))``, without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sigmoid-13.
    """

    name: ClassVar[str] = "sigmoid"
    domain: ClassVar[tuple[float, float]] = (-12.0, 12.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        small = np.exp(-np.abs(x))
        return np.where(x < 0, small, x.dtype.type(1)) / (1 + small)


@dataclass(frozen=True)
class HardSigmoid(Unary):
    """``alpha * x + beta`` clipped to 0 and 1.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX HardSigmoid-22.
    """

    name: ClassVar[str] = "hard_sigmoid"

    alpha: float = 0.2
    """Slope."""
    beta: float = 0.5
    """Value at zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        line = x * x.dtype.type(self.alpha) + x.dtype.type(self.beta)
        return np.clip(line, 0, 1)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=1 / 6, beta=0.5)
        yield cls(alpha=0.7, beta=0.1)


@dataclass(frozen=True)
class Swish(Unary):
    """``x / (1 + exp(-alpha * x))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Swish-24.
    """

    name: ClassVar[str] = "swish"
    domain: ClassVar[tuple[float, float]] = (-8.0, 8.0)

    alpha: float = 1.0
    """Steepness; 1 gives SiLU."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return x / (1 + np.exp(-x.dtype.type(self.alpha) * x))

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=1.702)


@dataclass(frozen=True)
class HardSwish(Unary):
    """``x * clip(x / 6 + 1 / 2, 0, 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX HardSwish-22.
    """

    name: ClassVar[str] = "hard_swish"

    @override
    def _apply(self, x: Array, /) -> Any:
        return x * np.clip(x * x.dtype.type(1 / 6) + x.dtype.type(0.5), 0, 1)


@dataclass(frozen=True)
class Mish(Unary):
    """``x * tanh(log(1 + exp(x)))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Mish-22.
    """

    name: ClassVar[str] = "mish"
    domain: ClassVar[tuple[float, float]] = (-20.0, 20.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        softplus = np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))
        return x * np.tanh(softplus)


@dataclass(frozen=True)
class Softplus(Unary):
    """``log(1 + exp(x))``, without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Softplus-22.
    """

    name: ClassVar[str] = "softplus"
    domain: ClassVar[tuple[float, float]] = (-25.0, 25.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x)))


@dataclass(frozen=True)
class Softsign(Unary):
    """``x / (1 + |x|)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Softsign-22.
    """

    name: ClassVar[str] = "softsign"

    @override
    def _apply(self, x: Array, /) -> Any:
        return x / (1 + np.abs(x))


@dataclass(frozen=True)
class Shrink(Unary):
    """``x + bias`` if ``x < -lambd``, ``x - bias`` if ``x > lambd``, otherwise zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Shrink-9.
    """

    name: ClassVar[str] = "shrink"

    bias: float = 0.0
    """Amount that is subtracted from the magnitude."""
    lambd: float = 0.5
    """Half the width of the interval whose elements become zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        bias = x.dtype.type(self.bias)
        above: Array = np.where(x > self.lambd, x - bias, np.zeros_like(x))
        return np.where(x < -self.lambd, x + bias, above)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(bias=1.5, lambd=1.5)
        yield cls(bias=0.5, lambd=-1.0)
