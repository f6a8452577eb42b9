"""Ceil: rounding up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Ceil(Unary):
    """The least whole number that is not below.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Ceil-13.
    """

    name: ClassVar[str] = "ceil"

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.ceil(x)
