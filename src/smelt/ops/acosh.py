"""Acosh: the inverse hyperbolic cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Acosh(Unary):
    """``acosh(x)``; NaN outside the domain.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Acosh-22.
    """

    name: ClassVar[str] = "acosh"
    domain: ClassVar[tuple[float, float]] = (1.0, 9.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.arccosh(x)
