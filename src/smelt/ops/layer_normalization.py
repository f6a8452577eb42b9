"""LayerNormalization: each row normalised to mean 0 and variance 1."""

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
    optional_type,
    require_broadcast,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import optional_array, present
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class LayerNormalization(Op):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Mean and variance are computed over the axes from ``axis`` on. Inputs are x, scale, and
    optionally bias.

    Shapes: scale and bias broadcast to x; the result's is x's.

    Dtypes: floating-point, one for all; statistics are computed at least in float32.

    Raises ShapeError: when the axis is out of range, or scale or bias do not broadcast to x.

    Source: ONNX LayerNormalization-17, first result.
    """

    name: ClassVar[str] = "layer_normalization"

    axis: int = -1
    """First axis over which mean and variance are computed."""
    epsilon: float = 1e-5
    """Number that is added to the variance."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 3)
        x, scale = input_type(self, inputs, 0), input_type(self, inputs, 1)
        bias = optional_type(self, inputs, 2)
        require_dtype(x, FLOATS, "the input of layer_normalization")
        require_same_dtype(x, scale, bias)
        normalize_axis(self.axis, x.rank)
        require_broadcast(scale, x.shape, "the scale of layer_normalization")
        require_broadcast(bias, x.shape, "the bias of layer_normalization")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = widen(present(inputs, 0)), widen(present(inputs, 1))
        if not x.size:
            return (present(inputs, 0),)
        bias = optional_array(inputs, 2)
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        centred = x - mean(x, axes)
        variance = mean(np.square(centred), axes)
        y = centred / np.sqrt(variance + x.dtype.type(self.epsilon)) * scale
        if bias is not None:
            y = y + widen(bias)
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: LayerNormalization, *shape: int, half: bool = False) -> Case:
            kind = np.float16 if half else np.float32
            row = shape[op.axis :]
            tensors = [
                floats(*s, dtype=kind, high=3.0, seed=n) for n, s in enumerate((shape, row, row))
            ]
            tolerance = HALF_TOLERANCE if half else 1e-4
            return Case(name, op, tuple(tensors), tolerance, frozenset({1, 2}))

        yield case("rows", cls(), 2, 5, 33)
        yield case("two_axes", cls(axis=-2), 3, 4, 17)
        yield case("axis_from_front", cls(axis=1, epsilon=1e-3), 2, 3, 4, 5)
        yield case("one_row", cls(), 129)
        arrays = (floats(3, 17), floats(17, seed=1), None)
        yield Case("no_bias", cls(), arrays, constants=frozenset({1}))
        each = (floats(2, 5, 33), floats(5, 33, seed=1), floats(2, 1, 33, seed=2))
        yield Case("scale_and_bias_for_each_row", cls(), each)
        yield case("empty_batch", cls(), 0, 7)
        yield case("float16", cls(), 5, 65, half=True)
