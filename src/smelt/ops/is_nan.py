"""IsNaN: which elements are no number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._unary import Unary
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array


@dataclass(frozen=True)
class IsNaN(Unary):
    """True where the element is NaN.

    Shapes: the input's.

    Dtypes: floating-point; the result is bool.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX IsNaN-20.
    """

    name: ClassVar[str] = "is_nan"
    result: ClassVar[DType | None] = DType.BOOL

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.isnan(x)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        x = np.array([[0, np.nan, 1], [np.inf, -np.inf, -3]], np.float32)
        yield Case("float32", cls(), (x,))
        yield Case("float16", cls(), (x.astype(np.float16),))
