"""Selu: scaled exponential linear unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from smelt.ir import Array


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
    """Scale of the whole."""

    @override
    def _apply(self, x: Array, /) -> Any:
        negative = x.dtype.type(self.alpha) * np.expm1(np.minimum(x, x.dtype.type(0)))
        return x.dtype.type(self.gamma) * np.where(x > 0, x, negative)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=2.0, gamma=0.5)
