"""Softplus: a smooth rectifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


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
