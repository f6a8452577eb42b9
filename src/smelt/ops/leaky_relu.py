"""LeakyRelu: negative elements are scaled."""

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
class LeakyRelu(Unary):
    """``x`` where it is not negative, else ``alpha * x``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX LeakyRelu-16.
    """

    name: ClassVar[str] = "leaky_relu"

    alpha: float = 0.01
    """Slope of the negative side."""

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.where(x < 0, x * x.dtype.type(self.alpha), x)

    @override
    @classmethod
    def _variants(cls) -> Iterator[Self]:
        yield cls()
        yield cls(alpha=0.3)
        yield cls(alpha=-1.5)
