"""Relu: negative elements become zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._shape import SIGNED
from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array
    from smelt.types import DType


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
