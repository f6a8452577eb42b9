"""Mish: the element times the tangent of its softplus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


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
