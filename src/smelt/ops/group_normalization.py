"""GroupNormalization: each group of channels normalised to mean 0 and variance 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import mean, narrow, required, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    known,
    require_dtype,
    require_inputs,
    require_rank,
    require_same_dtype,
    require_shape,
)
from smelt.ops._shape_operands import present
from smelt.types import assume_divides, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class GroupNormalization(Op):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Mean and variance are computed over a group of channels and the spatial axes. Inputs are x,
    scale and bias.

    Shapes: x ``[N, C, *spatial]``, scale and bias ``[C]``; the result's is x's.

    Dtypes: floating-point, one for all; statistics are computed at least in float32.

    Raises ShapeError: when the numbers of channels do not match, or the groups do not divide them.

    Source: ONNX GroupNormalization-21.
    """

    name: ClassVar[str] = "group_normalization"

    num_groups: int
    """Number of groups into which the channels are divided."""
    epsilon: float = 1e-5
    """Number that is added to the variance."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        x, scale, bias = (input_type(self, inputs, index) for index in range(3))
        require_dtype(x, FLOATS, "the input of group_normalization")
        require_same_dtype(x, scale, bias)
        require_rank(x, "the input of group_normalization", 2, 99)
        require_shape(scale, (x.shape[1],), "the scale of group_normalization")
        require_shape(bias, (x.shape[1],), "the bias of group_normalization")
        channels = known(x.shape[1], scale.shape[0])
        if self.num_groups < 1 or not assume_divides(
            self.num_groups, channels, "axis 1 of input 0 and the groups"
        ):
            raise ShapeError(f"{channels} channels are not divisible by {self.num_groups} groups")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, bias = (widen(required(array)) for array in inputs)
        if not x.size:
            return (present(inputs, 0),)
        shape = (-1, *[1] * (x.ndim - 2))
        size = prod(x.shape[1:]) // self.num_groups
        rows = x.reshape(x.shape[0], self.num_groups, size)
        centred = rows - mean(rows, (2,))
        variance = mean(np.square(centred), (2,))
        y = centred / np.sqrt(variance + x.dtype.type(self.epsilon))
        y = y.reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: GroupNormalization, *shape: int, half: bool = False) -> Case:
            kind = np.float16 if half else np.float32
            x = floats(*shape, dtype=kind, low=-1.0, high=3.0)
            scale, bias = (floats(shape[1], dtype=kind, seed=seed) for seed in (1, 2))
            tolerance = HALF_TOLERANCE if half else 1e-4
            return Case(name, op, (x, scale, bias), tolerance, frozenset({1, 2}))

        yield case("image", cls(3), 2, 9, 5, 7)
        yield case("one_group", cls(1), 1, 17, 3, 4)
        yield case("group_a_channel", cls(33, epsilon=1e-2), 1, 33, 4, 3)
        yield case("series", cls(2), 2, 4, 11)
        yield case("float16", cls(4), 1, 8, 5, 5, half=True)
