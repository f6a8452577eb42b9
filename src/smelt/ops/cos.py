"""Cos: the cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Cos(Unary):
    """``cos(x)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Cos-22.
    """

    name: ClassVar[str] = "cos"

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.cos(x)
