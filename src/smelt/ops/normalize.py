"""Normalize: each pixel, or each image, divided by its L2 norm and scaled (Caffe SSD)."""

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
    require_dtype,
    require_inputs,
    require_rank,
    require_same_dtype,
    require_shape,
)
from smelt.ops._shape_operands import present
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class Normalize(Op):
    """``x / sqrt(sum(x ** 2) + eps) * scale``. Inputs are x and scale.

    Shapes: x ``[N, C, *spatial]``, scale ``[1]`` if shared, otherwise ``[C]``; the result's is x's.

    Dtypes: floating-point, one for both.

    Raises ShapeError: when the shape of the scale does not match.

    Source: Caffe (SSD) NormalizeLayer.
    """

    name: ClassVar[str] = "normalize"

    across_spatial: bool = True
    """Whether the sum is over the whole image instead of the channels of one pixel."""
    channel_shared: bool = True
    """Whether all channels share one scale."""
    eps: float = 1e-10
    """Number that is added to the sum."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        x, scale = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(x, FLOATS, "the input of normalize")
        require_same_dtype(x, scale)
        require_rank(x, "the input of normalize", 2, 99)
        require_shape(scale, (1 if self.channel_shared else x.shape[1],), "the scale of normalize")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = widen(present(inputs, 0)), widen(present(inputs, 1))
        axes = tuple(range(1, x.ndim)) if self.across_spatial else (1,)
        total = np.square(x).sum(axis=axes, keepdims=True) + x.dtype.type(self.eps)
        y = x / np.sqrt(total) * scale.reshape(-1, *[1] * (x.ndim - 2))
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1})
        x = floats(2, 17, 5, 7)
        shared, each = floats(1, low=1, high=20, seed=1), floats(17, low=1, high=20, seed=1)
        yield Case("image_shared", cls(), (x, shared), constants=constants)
        yield Case("image_each", cls(channel_shared=False), (x, each), constants=constants)
        op = cls(across_spatial=False, channel_shared=False)
        yield Case("place_each", op, (x, each), constants=constants)
        yield Case("place_shared", cls(across_spatial=False), (x, shared), constants=constants)
        yield Case(
            "zeros", cls(), (np.zeros((1, 3, 2, 2), np.float32), shared), constants=constants
        )
        arrays = (floats(1, 9, 3, 3, dtype=np.float16), floats(9, dtype=np.float16, seed=1))
        yield Case("float16", op, arrays, HALF_TOLERANCE, constants)
