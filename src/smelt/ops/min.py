"""Min: the smallest of the inputs, element by element; NaN where one is NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._broadcast import Variadic, variadic_cases
from smelt.types import assume_at_least, is_never_negative, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case
    from smelt.types import Dim


@dataclass(frozen=True)
class Min(Variadic):
    """The smallest of the inputs, element by element; NaN where one is NaN.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Min-13.
    """

    name: ClassVar[str] = "min"

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        for one, other in ((left, right), (right, left)):
            if is_never_negative(one - other, least=1):
                assume_at_least(one, other, "elements of the inputs")
                return other
        return None

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.minimum(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from variadic_cases(cls(), "float32", "float16", "float64", "int32", "int64", "uint8")
