"""Mod: the remainder of a division."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case
from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.ops._shape import input_type
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Mod(Broadcast):
    """The remainder of a division: with the sign of the divisor, or with ``fmod`` of the dividend.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; floats need ``fmod``; an integer modulo zero gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Mod-13.
    """

    name: ClassVar[str] = "mod"

    fmod: int = 0

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        if self.fmod or not isinstance(right, int) or right <= 0:
            return None
        return left - left // right * right

    @override
    def compute(self, left: Array, right: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.fmod(left, right) if self.fmod else np.mod(left, right)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        result = super().infer(inputs)
        if input_type(self, inputs, 0).dtype.is_float and not self.fmod:
            raise ShapeError("mod of floats needs fmod=1")
        return result

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "int32", "int64", "int8", low=-9, high=0)
        for case in broadcast_cases(cls(fmod=1), "float32", "float64", low=1, high=12):
            yield replace(case, name=f"{case.name}, fmod")
        signs = np.array([7, -7, 7, -7, 6], np.int64), np.array([3, 3, -3, -3, 3], np.int64)
        yield Case("sign of the divisor", cls(), signs)
        yield Case("sign of the dividend", cls(fmod=1), signs)
        floats = np.array([7.5, -7.5, 7.5], np.float32), np.array([2.0, 2.0, -2.0], np.float32)
        yield Case("floats", cls(fmod=1), floats)
        least = np.array([[-128], [7], [0]], np.int8)
        yield Case("by zero and minus one", cls(), (least, np.array([0, -1], np.int8)))
        yield Case("uint8", cls(), (np.array([250, 9], np.uint8), np.array([7], np.uint8)))
