"""Elu: exponential linear unit."""

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
class Elu(Unary):
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Elu-22.
    """

    name: ClassVar[str] = "elu"

    alpha: float = 1.0
    """Scale of the negative side."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(
            x > 0, x, x.dtype.type(self.alpha) * np.expm1(np.minimum(x, x.dtype.type(0)))
        )

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=0.4)
