"""Sum: the sum of the inputs, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._broadcast import Variadic, variadic_cases
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case
    from smelt.types import Dim


@dataclass(frozen=True)
class Sum(Variadic):
    """The sum of the inputs, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Sum-13.
    """

    name: ClassVar[str] = "sum"

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        return left + right

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.add(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from variadic_cases(cls(), "float32", "float16", "float64")
