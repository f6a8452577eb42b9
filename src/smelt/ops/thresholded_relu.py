"""ThresholdedRelu: elements up to a threshold become zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from smelt.ir import Array


@dataclass(frozen=True)
class ThresholdedRelu(Unary):
    """``x`` where it is above ``alpha``, else zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX ThresholdedRelu-22.
    """

    name: ClassVar[str] = "thresholded_relu"

    alpha: float = 1.0
    """The threshold."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(x > self.alpha, x, x.dtype.type(0))

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=-0.5)
