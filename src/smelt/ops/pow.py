"""Pow: the first tensor to the power of the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.ops._reference_numerics import truncate
from smelt.ops._shape import (
    NUMBERS,
    broadcast_shapes,
    input_type,
    require_dtype,
    require_inputs,
)
from smelt.ops._shape_operands import sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class Pow(Broadcast):
    """The first tensor to the power of the second.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the exponent may have another type than the base, whose type the result has.
    Of integers it is taken modulo their width; what is below one is zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Pow-15.
    """

    name: ClassVar[str] = "pow"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        base, exponent = input_type(self, inputs, 0), input_type(self, inputs, 1)
        for kind, what in ((base, "the base"), (exponent, "the exponent")):
            require_dtype(kind, NUMBERS, f"{what} of {self.name}")
        return (TensorType(base.dtype, broadcast_shapes(base.shape, exponent.shape)),)

    @override
    def compute(self, left: Array, right: Array) -> Array:
        if left.dtype.kind == "f":
            # numpy takes a root for an exponent of 0.5, which differs for -0 and minus infinity.
            unsigned = (right == 0.5) & ((left == 0) | np.isinf(left))
            return np.power(np.where(unsigned, np.abs(left), left), right)
        if right.dtype.kind == "f":
            return truncate(np.power(left.astype(np.float64), right), left.dtype)
        return _power_of_integers(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "float32", "float16", "float64", low=1, high=12)
        yield from (
            Case(
                f"{base} to the {exponent}",
                cls(),
                (sample(3, 5, dtype=base, low=1, high=9), sample(5, dtype=exponent, low=1, high=4)),
            )
            for base, exponent in (("int32", "int32"), ("float32", "int64"), ("int64", "float32"))
        )
        corners = np.array([0.0, 0.0, -2.0, -2.0, 1.0, 4.0], np.float32)
        exponents = np.array([0.0, 3.0, 2.0, 3.0, -5.0, 0.5], np.float32)
        yield Case("corners", cls(), (corners, exponents))
        special = np.array([0, -0.0, 1, -1, 2.5, -2, np.inf, -np.inf, np.nan], np.float32)
        exponents = np.array([0, 2, -3, 0.5, -1.5, np.inf, -np.inf, np.nan], np.float32)
        yield Case("whatever to whatever", cls(), (special[:, None], exponents))


def _power_of_integers(base: Array, exponent: Array) -> Array:
    counts = np.maximum(exponent, 0).astype(np.uint64)
    power = np.power(base.astype(np.uint64), counts).astype(base.dtype)
    sign = np.where(exponent % 2 == 1, base, np.ones_like(base))
    inverse = np.where(np.isin(base, (-1, 1)), sign, np.zeros_like(base))
    return np.where(exponent < 0, inverse.astype(base.dtype), power)
