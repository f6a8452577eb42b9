"""Celu: continuously differentiable exponential linear unit."""

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
