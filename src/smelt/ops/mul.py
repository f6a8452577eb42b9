"""Mul: the product of two tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.ops._shape_operands import MAXIMUM_TERMS
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case
    from smelt.types import Dim


@dataclass(frozen=True)
class Mul(Broadcast):
    """The product of two tensors.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; integers wrap around.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Mul-14.
    """

    name: ClassVar[str] = "mul"

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        terms = [1 if isinstance(d, int) else len(d.terms) for d in (left, right)]
        return left * right if terms[0] * terms[1] <= MAXIMUM_TERMS else None

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.multiply(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(
            cls(), "float32", "float16", "float64", "int32", "int64", "uint8"
        )
