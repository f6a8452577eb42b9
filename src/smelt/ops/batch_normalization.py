"""BatchNormalization: each channel normalised with recorded statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, required, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    known,
    require_dtype,
    require_inputs,
    require_rank,
    require_shape,
)
from smelt.ops._shape_operands import present
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class BatchNormalization(Op):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` for each channel.

    Inputs are x, scale, bias, mean and variance.

    Shapes: x ``[N, C, *spatial]``, the others ``[C]``; the result's is x's.

    Dtypes: floating-point; the result's is x's.

    Raises ShapeError: when the numbers of channels differ.

    Source: ONNX BatchNormalization-15, in inference mode.
    """

    name: ClassVar[str] = "batch_normalization"

    epsilon: float = 1e-5
    """Number that is added to the variance."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 5)
        x, *others = (input_type(self, inputs, index) for index in range(5))
        require_rank(x, "the input of batch_normalization", 2, 99)
        channels = x.shape[1]
        for kind, what in zip(others, ("scale", "bias", "mean", "variance"), strict=True):
            require_dtype(kind, FLOATS, what)
            require_shape(kind, (channels,), f"the {what} of batch_normalization")
            channels = known(channels, kind.shape[0])
        require_dtype(x, FLOATS, "the input of batch_normalization")
        return (TensorType(x.dtype, (x.shape[0], channels, *x.shape[2:])),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        shape = (-1, *[1] * (x.ndim - 2))
        scale, bias, mean, variance = (widen(required(a)).reshape(shape) for a in inputs[1:])
        factor = scale / np.sqrt(variance + variance.dtype.type(self.epsilon))
        return (narrow((widen(x) - mean) * factor + bias, x.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: BatchNormalization, *shape: int, half: bool = False) -> Case:
            kind = np.float16 if half else np.float32
            channels = shape[1]
            rows = [floats(channels, dtype=kind, seed=seed) for seed in (1, 2, 3)]
            rows.append(floats(channels, dtype=kind, low=0.1, high=2.0, seed=4))
            tolerance = HALF_TOLERANCE if half else 1e-4
            arrays = (floats(*shape, dtype=kind), *rows)
            return Case(name, op, arrays, tolerance, frozenset(range(1, 5)))

        yield case("image", cls(), 2, 17, 5, 7)
        yield case("one_channel", cls(), 1, 1, 3, 3)
        yield case("large_epsilon", cls(epsilon=0.1), 1, 33, 4, 5)
        yield case("matrix", cls(), 5, 9)
        yield case("volume", cls(), 1, 3, 2, 3, 4)
        yield case("empty_batch", cls(), 0, 3, 4, 4)
        yield case("float16", cls(), 1, 9, 5, 5, half=True)
