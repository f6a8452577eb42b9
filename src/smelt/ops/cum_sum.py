"""CumSum: cumulative sums along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    NUMBERS,
    input_type,
    normalize_axis,
    require_dtype,
    require_inputs,
    shape_text,
)
from smelt.ops._shape_operands import ints_at, present, sample
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class CumSum(Op):
    """Cumulative sums along an axis.

    With ``reverse`` the sums start at the end of the axis; with ``exclusive`` each sum excludes the
    element itself.

    Shapes: (data, axis scalar) -> data's.

    Dtypes: numbers; the axis is int32 or int64.

    Raises ShapeError: when the axis is not known or out of range.

    Source: ONNX CumSum-14.
    """

    name: ClassVar[str] = "cum_sum"

    exclusive: int = 0
    reverse: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        require_dtype(data, NUMBERS, "input 0 of cum_sum")
        axes = ints_at(self, inputs, 1, "the axis", scalar=True) or ()
        if len(axes) != 1:
            raise ShapeError(f"the axis of cum_sum must be one number, not {shape_text(axes)}")
        normalize_axis(axes[0], data.rank)
        return (data,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axis = present(inputs, 0), int(present(inputs, 1).item())
        wide = widen(data)
        ordered = np.flip(wide, axis) if self.reverse else wide
        sums = np.cumsum(ordered, axis, dtype=wide.dtype)
        if self.exclusive and data.shape[axis]:
            sums = np.roll(sums, 1, axis)
            sums[(slice(None),) * (axis % data.ndim) + (0,)] = 0
        result = np.array(np.flip(sums, axis) if self.reverse else sums, order="C")
        return (narrow(result, data.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        for exclusive in (0, 1):
            for reverse in (0, 1):
                label = f"exclusive {exclusive}, reverse {reverse}"
                inputs = (sample(2, 5), np.array(1))
                yield Case(label, cls(exclusive, reverse), inputs, constants=one)
        yield Case("first axis", cls(), (sample(4, 3), np.array(0, np.int32)), constants=one)
        yield Case("negative axis", cls(1), (sample(2, 3, 4), np.array(-2)), constants=one)
        yield Case("no elements", cls(1), (sample(2, 0), np.array(1)), constants=one)
        for dtype in ("float64", "int64", "int32"):
            yield Case(dtype, cls(), (sample(7, dtype=dtype), np.array(0)), constants=one)
