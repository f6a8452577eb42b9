"""Equal: whether the first input is equal to the second, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.types import DType, is_never_negative, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array
    from smelt.types import Dim


@dataclass(frozen=True)
class Equal(Broadcast):
    """Whether the first input is equal to the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Equal-19.
    """

    name: ClassVar[str] = "equal"
    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        gap = left - right
        if gap == 0:
            return 1
        return 0 if is_never_negative(gap - 1) or is_never_negative(-gap - 1) else None

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.asarray(np.equal(left, right))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(
            cls(),
            "float32",
            "float16",
            "float64",
            "int32",
            "int64",
            "uint8",
            "bool",
            low=-2,
            high=3,
        )
        nan = np.array([np.nan, 1.0, np.inf, -0.0], np.float32)
        yield Case(
            "NaN, infinity and negative zero",
            cls(),
            (nan, np.array([np.nan, np.nan, np.inf, 0.0], np.float32)),
        )
