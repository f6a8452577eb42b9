"""Sigmoid: the logistic function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


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
