"""Neg: the opposite."""

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
class Neg(Unary):
    """``-x``.

    Shapes: the input's.

    Dtypes: signed numbers; the result's is the input's.

    Raises ShapeError: when there is not one signed input.

    Source: ONNX Neg-13.
    """

    name: ClassVar[str] = "neg"
    allowed: ClassVar[frozenset[DType]] = SIGNED

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.negative(x)
