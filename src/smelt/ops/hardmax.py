"""Hardmax: one at the first largest element of each row, else zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._examples import HALF_TOLERANCE, floats
from smelt.ops._numerics import widen
from smelt.ops._operands import present
from smelt.ops._shape import FLOATS, input_type, normalize_axis, require_dtype, require_inputs
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class Hardmax(Op):
    """1 at the first largest element along one axis, else 0.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is outside the input.

    Source: ONNX Hardmax-13.
    """

    name: ClassVar[str] = "hardmax"

    axis: int = -1
    """Axis along which elements compete."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS, "the input of hardmax")
        normalize_axis(self.axis, x.rank)
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        if not array.size:
            return (array,)
        x = widen(array)
        shifted = x - x.max(axis=self.axis, keepdims=True)
        first = np.expand_dims(shifted.argmax(axis=self.axis), self.axis)
        y = np.zeros_like(array)
        np.put_along_axis(y, first, 1, axis=self.axis)
        return (y,)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("rows", cls(), (floats(5, 33, low=-9, high=9),))
        yield Case("one_row", cls(), (floats(1000, low=-9, high=9),))
        yield Case("channels", cls(axis=1), (floats(2, 17, 4, 5, low=-9, high=9),))
        yield Case("first_axis", cls(axis=0), (floats(7, 3, low=-9, high=9),))
        yield Case("one_element", cls(), (floats(4, 1),))
        yield Case("large_values", cls(), (floats(3, 9, low=500, high=600),))
        yield Case("empty_batch", cls(), (floats(0, 9),))
        x = floats(5, 65, dtype=np.float16, low=-9, high=9)
        yield Case("float16", cls(), (x,), HALF_TOLERANCE)
