"""IsInf: which elements are infinite."""

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
class IsInf(Unary):
    """True where the element is infinite, of the signs that are asked for.

    Shapes: the input's.

    Dtypes: floating-point; the result is bool.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX IsInf-20.
    """

    name: ClassVar[str] = "is_inf"
    result: ClassVar[DType | None] = DType.BOOL

    detect_negative: int = 1
    """Whether negative infinity counts."""
    detect_positive: int = 1
    """Whether positive infinity counts."""

    @override
    def _apply(self, x: Array, /) -> Any:
        negative = np.isneginf(x) & bool(self.detect_negative)
        return negative | (np.isposinf(x) & bool(self.detect_positive))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        x = np.array([[0, np.nan, 1], [np.inf, -np.inf, -3]], np.float32)
        yield Case("float32", cls(), (x,))
        yield Case("float16", cls(), (x.astype(np.float16),))
        yield Case("positive", cls(detect_negative=0), (x,))
        yield Case("negative", cls(detect_positive=0), (x,))
        yield Case("neither", cls(detect_negative=0, detect_positive=0), (x,))
