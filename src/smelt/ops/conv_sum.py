"""ConvSum: the sum of two convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import require_inputs
from smelt.ops._shape_operands import optional_array, present
from smelt.ops.conv import Conv
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType

_OWN_INPUTS = 2
"""Inputs of each convolution: image and weights."""


@dataclass(frozen=True)
class ConvSum(Op):
    """The sum of two convolutions, computed as one longer sum for each element.

    Inputs are image and weights of the first, image and weights of the second, and optionally a
    bias. It is the end of a residual block whose shortcut is a projection.

    Shapes: those of both convolutions, whose results have the same shape.

    Dtypes: the convolutions'.

    Raises ShapeError: when the inputs of a convolution do not fit, or the shapes of the results
    differ.

    Source: design, "Fused ops".
    """

    name: ClassVar[str] = "conv_sum"

    first: Conv
    second: Conv

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2 * _OWN_INPUTS, 2 * _OWN_INPUTS + 1)
        bias = inputs[2 * _OWN_INPUTS :]
        one = self.first.infer([*inputs[:_OWN_INPUTS], *bias])
        other = self.second.infer(inputs[_OWN_INPUTS : 2 * _OWN_INPUTS])
        if one != other:
            raise ShapeError(
                f"the convolutions give {one[0]} and {other[0]}, which cannot be added"
            )
        return one

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        second = self.second.count_flop(inputs[_OWN_INPUTS : 2 * _OWN_INPUTS])
        return self.first.count_flop(inputs[:_OWN_INPUTS]) + second

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        bias = optional_array(inputs, 2 * _OWN_INPUTS)
        (one,) = self.first.reference(*inputs[:_OWN_INPUTS], bias)
        (other,) = self.second.reference(*inputs[_OWN_INPUTS : 2 * _OWN_INPUTS])
        return (narrow(widen(one) + widen(other), present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(
            name: str, op: ConvSum, channels: tuple[int, int], size: int, filters: int
        ) -> Case:
            (step, _), reach = op.second.strides, op.first.kernel_shape[0]
            arrays = (
                floats(2, channels[0], size, size + 1),
                floats(filters, channels[0], reach, reach, seed=1),
                floats(2, channels[1], step * size, step * (size + 1), seed=2),
                floats(filters, channels[1], 1, 1, seed=3),
                floats(filters, seed=4),
            )
            return Case(name, op, arrays, constants=frozenset({1, 3, 4}))

        plain, halved = Conv((1, 1)), Conv((1, 1), (2, 2))
        yield case("projection", cls(plain, plain), (64, 128), 3, 40)
        yield case("halved", cls(plain, halved), (128, 64), 4, 33)
        yield case("window", cls(Conv((3, 3), pads=(1, 1, 1, 1)), halved), (64, 64), 4, 20)
        yield case("odd_channels", cls(plain, halved), (7, 13), 4, 9)
