"""Floor: rounding down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Floor(Unary):
    """The greatest whole number that is not above.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Floor-13.
    """

    name: ClassVar[str] = "floor"

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.floor(x)
