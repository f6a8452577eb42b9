"""Mean: the mean of the inputs, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, ClassVar

from smelt.ops._broadcast import Variadic, variadic_cases
from smelt.ops._shape import FLOATS
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Case
    from smelt.types import DType


@dataclass(frozen=True)
class Mean(Variadic):
    """The mean of the inputs, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: floats.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Mean-13.
    """

    name: ClassVar[str] = "mean"
    dtypes: ClassVar[frozenset[DType]] = FLOATS

    @override
    def combine(self, arrays: Sequence[Array]) -> Array:
        total: Array = reduce(add, arrays)
        return total / len(arrays)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from variadic_cases(cls(), "float32", "float16", "float64")
