"""RMSNormalization: each row divided by its root mean square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import mean, narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    normalize_axis,
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
class RMSNormalization(Op):
    """``x / sqrt(mean(x ** 2) + epsilon) * scale``, with the mean over the axes from ``axis`` on.

    Shapes: scale broadcasts to x; the result's is x's.

    Dtypes: floating-point, one for both; the mean is computed at least in float32.

    Raises ShapeError: when the axis is out of range or scale does not broadcast to x.

    Source: ONNX RMSNormalization-23.
    """

    name: ClassVar[str] = "rms_normalization"

    axis: int = -1
    """First axis over which the mean is computed."""
    epsilon: float = 1e-5
    """Number that is added to the mean square."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        x, scale = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(x, FLOATS, "the input of rms_normalization")
        require_same_dtype(x, scale)
        normalize_axis(self.axis, x.rank)
        require_broadcast(scale, x.shape, "the scale of rms_normalization")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = widen(present(inputs, 0)), widen(present(inputs, 1))
        if not x.size:
            return (present(inputs, 0),)
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        energy = mean(np.square(x), axes)
        y = x / np.sqrt(energy + x.dtype.type(self.epsilon)) * scale
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1})
        yield Case("rows", cls(), (floats(2, 5, 33), floats(33, seed=1)), constants=constants)
        arrays = (floats(3, 4, 17), floats(4, 17, seed=1))
        yield Case("two_axes", cls(axis=1), arrays, constants=constants)
        arrays = (floats(2, 5, 33), floats(2, 1, 33, seed=1))
        yield Case("scale_for_each_row", cls(), arrays)
        arrays = (floats(5, 65, dtype=np.float16), floats(65, dtype=np.float16, seed=1))
        yield Case("float16", cls(epsilon=1e-3), arrays, HALF_TOLERANCE, constants)
