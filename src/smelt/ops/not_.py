"""Not: logical negation."""

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
class Not(Unary):
    """True where the element is false.

    Shapes: the input's.

    Dtypes: bool; the result's is the input's.

    Raises ShapeError: when there is not one boolean input.

    Source: ONNX Not-1.
    """

    name: ClassVar[str] = "not"
    allowed: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    def _apply(self, x: Array, /) -> Any:
        return np.logical_not(x)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("line", cls(), (np.arange(33) % 3 == 0,))
        yield Case("scalar", cls(), (np.ones((), np.bool_),))
        yield Case("empty", cls(), (np.zeros((0, 3), np.bool_),))
