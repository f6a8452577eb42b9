"""Shrink: elements near zero become zero."""

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
class Shrink(Unary):
    """``x + bias`` below ``-lambd``, else ``x - bias`` above ``lambd``, else zero.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Shrink-9.
    """

    name: ClassVar[str] = "shrink"

    bias: float = 0.0
    """What is taken off the magnitude."""
    lambd: float = 0.5
    """Half the width of the dead zone."""

    @override
    def _apply(self, x: Array, /) -> Any:
        bias = x.dtype.type(self.bias)
        above: Array = np.where(x > self.lambd, x - bias, np.zeros_like(x))
        return np.where(x < -self.lambd, x + bias, above)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(bias=1.5, lambd=1.5)
        yield cls(bias=0.5, lambd=-1.0)
