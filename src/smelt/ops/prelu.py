"""PRelu: negative elements scaled by a learnt slope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    require_broadcast,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import present
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class PRelu(Op):
    """``x`` where it is not negative, otherwise ``slope * x``. Inputs are x and slope.

    Shapes: the slope broadcasts to x (``[C, 1, 1]`` for one per channel); the result's is x's.

    Dtypes: floating-point, one for both.

    Raises ShapeError: when the slope does not broadcast to x.

    Source: ONNX PRelu-16.
    """

    name: ClassVar[str] = "prelu"

    @property
    @override
    def elementwise(self) -> bool:
        return True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        x, slope = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(x, FLOATS, "the input of prelu")
        require_same_dtype(x, slope)
        require_broadcast(slope, x.shape, "the slope of prelu")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array, slope = present(inputs, 0), widen(present(inputs, 1))
        x = widen(array)
        return (narrow(np.where(x < 0, x * slope, x), array.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1})
        slope = floats(17, 1, 1, seed=1)
        yield Case("channels", cls(), (floats(2, 17, 5, 7), slope), constants=constants)
        yield Case("shared", cls(), (floats(3, 33), floats(1, seed=1)), constants=constants)
        yield Case("every_element", cls(), (floats(5, 9), floats(5, 9, seed=1)))
        yield Case("empty_batch", cls(), (floats(0, 9), floats(9, seed=1)), constants=constants)
        half = (floats(1, 9, 3, 3, dtype=np.float16), floats(9, 1, 1, dtype=np.float16, seed=1))
        yield Case("float16", cls(), half, HALF_TOLERANCE, constants)
