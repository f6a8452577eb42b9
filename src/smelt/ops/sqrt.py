"""Sqrt: the square root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Sqrt(Unary):
    """``sqrt(x)``; NaN below zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Sqrt-13.
    """

    name: ClassVar[str] = "sqrt"
    domain: ClassVar[tuple[float, float]] = (0.0, 9.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.sqrt(x)
