"""Swish: the element times its sigmoid (SiLU)."""

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
class Swish(Unary):
    """``x / (1 + exp(-alpha * x))``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Swish-24.
    """

    name: ClassVar[str] = "swish"
    domain: ClassVar[tuple[float, float]] = (-8.0, 8.0)

    alpha: float = 1.0
    """Steepness; 1 gives SiLU."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return x / (1 + np.exp(-x.dtype.type(self.alpha) * x))

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=1.702)
