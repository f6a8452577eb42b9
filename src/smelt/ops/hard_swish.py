"""HardSwish: the element times a clipped line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class HardSwish(Unary):
    """``x * clip(x / 6 + 1 / 2, 0, 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX HardSwish-22.
    """

    name: ClassVar[str] = "hard_swish"

    @override
    def _apply(self, x: Array, /) -> Any:
        return x * np.clip(x * x.dtype.type(1 / 6) + x.dtype.type(0.5), 0, 1)
