"""LessOrEqual: whether the first input is at most the second, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array


@dataclass(frozen=True)
class LessOrEqual(Broadcast):
    """Whether the first input is at most the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX LessOrEqual-16.
    """

    name: ClassVar[str] = "less_or_equal"
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.asarray(np.less_equal(left, right))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(
            cls(), "float32", "float16", "float64", "int32", "int64", "uint8", low=-2, high=3
        )
        nan = np.array([np.nan, 1.0, np.inf, -0.0], np.float32)
        yield Case(
            "NaN, infinity and negative zero",
            cls(),
            (nan, np.array([np.nan, np.nan, np.inf, 0.0], np.float32)),
        )
