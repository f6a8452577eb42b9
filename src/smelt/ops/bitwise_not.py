"""BitwiseNot: negation of every bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class BitwiseNot(Unary):
    """``~x``.

    Shapes: the input's.

    Dtypes: integers; the result's is the input's.

    Raises ShapeError: when there is not one integer input.

    Source: ONNX BitwiseNot-18.
    """

    name: ClassVar[str] = "bitwise_not"
    allowed: ClassVar[frozenset[DType]] = frozenset(d for d in DType if d.is_integer)

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.invert(x)
