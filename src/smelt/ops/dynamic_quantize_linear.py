"""DynamicQuantizeLinear: quantisation to uint8 with a scale from the range of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import floats
from smelt.ops._reference_numerics import truncate
from smelt.ops._shape import input_type, require_dtype, require_inputs
from smelt.ops._shape_operands import present
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class DynamicQuantizeLinear(Op):
    """Quantisation to uint8 with a range that includes zero and all elements.

    Results are the quantised tensor, its scale and its zero point.

    Shapes: the quantised tensor has that of the input; scale and zero point are scalars.

    Dtypes: float32 gives uint8, float32 and uint8.

    Raises ShapeError: when there is not one float32 input.

    Source: ONNX DynamicQuantizeLinear-11; for a tensor of zeros the scale is 1.
    """

    name: ClassVar[str] = "dynamic_quantize_linear"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, {DType.FLOAT32}, "the input of dynamic_quantize_linear")
        return (
            TensorType(DType.UINT8, x.shape),
            TensorType(DType.FLOAT32, ()),
            TensorType(DType.UINT8, ()),
        )

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        least = np.minimum(x.min(initial=0), np.float32(0))
        largest = np.maximum(x.max(initial=0), np.float32(0))
        scale = (
            np.float32((largest - least) / np.float32(255)) if largest > least else np.float32(1)
        )
        zero_point = truncate(np.rint(-least / scale), np.dtype(np.uint8))
        steps = truncate(np.rint(x / scale) + zero_point, np.dtype(np.uint8))
        return (steps, np.asarray(scale, np.float32), zero_point)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("both_signs", cls(), (floats(2, 17, 5, low=-3, high=5),))
        yield Case("positive", cls(), (floats(33, low=1, high=5),))
        yield Case("negative", cls(), (floats(9, 3, low=-5, high=-1),))
        yield Case("zeros", cls(), (np.zeros((3, 3), np.float32),))
        strange = np.array([[1, -2, np.nan], [3, np.inf, 0]], np.float32)
        yield Case("not a number", cls(), (strange,))
