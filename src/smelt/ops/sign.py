"""Sign: the sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._shape import NUMBERS
from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array
    from smelt.types import DType


@dataclass(frozen=True)
class Sign(Unary):
    """-1, 0 or 1.

    Shapes: the input's.

    Dtypes: numbers; the result's is the input's.

    Raises ShapeError: when there is not one numeric input.

    Source: ONNX Sign-13.
    """

    name: ClassVar[str] = "sign"
    allowed: ClassVar[frozenset[DType]] = NUMBERS

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.sign(x)
