"""Reciprocal: the inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.ops._unary import Unary
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Reciprocal(Unary):
    """``1 / x``.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX Reciprocal-13.
    """

    name: ClassVar[str] = "reciprocal"
    domain: ClassVar[tuple[float, float]] = (0.3, 4.0)

    @override
    def _apply(self, x: Array, /) -> Any:
        return 1 / x
