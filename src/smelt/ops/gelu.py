"""Gelu: the element times the normal distribution up to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class Gelu(Unary):
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or its approximation by a hyperbolic tangent.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input, or approximate is unknown.

    Source: ONNX Gelu-20.
    """

    name: ClassVar[str] = "gelu"

    approximate: str = "none"
    """Either "none" or "tanh": ``tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))`` for erf."""

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
