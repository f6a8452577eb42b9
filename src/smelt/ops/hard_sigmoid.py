"""HardSigmoid: a clipped line."""

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
class HardSigmoid(Unary):
    """``alpha * x + beta`` clipped to 0 and 1.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX HardSigmoid-22.
    """

    name: ClassVar[str] = "hard_sigmoid"

    alpha: float = 0.2
    """Slope."""
    beta: float = 0.5
    """Value at zero."""

    @override
    def _apply(self, x: Array, /) -> Any:
        line = x * x.dtype.type(self.alpha) + x.dtype.type(self.beta)
        return np.clip(line, 0, 1)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=1 / 6, beta=0.5)
        yield cls(alpha=0.7, beta=0.1)
