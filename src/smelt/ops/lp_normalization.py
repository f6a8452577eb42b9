"""LpNormalization: each row divided by its norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, input_type, normalize_axis, require_dtype, require_inputs
from smelt.ops._shape_operands import present
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class LpNormalization(Op):
    """``x / norm(x)`` along an axis, with the L1 or the L2 norm; 0 where the norm is 0.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range or p is neither 1 nor 2.

    Source: ONNX LpNormalization-22.
    """

    name: ClassVar[str] = "lp_normalization"

    axis: int = -1
    """Axis along which the norm is computed."""
    p: int = 2
    """Exponent of the norm, 1 or 2."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS, "the input of lp_normalization")
        normalize_axis(self.axis, x.rank)
        if self.p not in {1, 2}:
            raise ShapeError(f"p of lp_normalization is {self.p}; it must be 1 or 2")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = widen(present(inputs, 0))
        powers = np.abs(x) if self.p == 1 else np.square(x)
        total = powers.sum(axis=self.axis, keepdims=True)
        norm: Array = total if self.p == 1 else np.sqrt(total)
        y = x / np.where(norm == 0, np.inf, norm).astype(norm.dtype)
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("rows", cls(), (floats(3, 5, 33),))
        yield Case("channels", cls(axis=1), (floats(2, 17, 4, 5),))
        yield Case("magnitudes", cls(axis=0, p=1), (floats(9, 3),))
        yield Case("zero_row", cls(), (np.array([[0, 0, 0], [3, 0, -4]], np.float32),))
        tiny = np.full((2, 4), 1e-25, np.float32)
        yield Case("squares that are too small", cls(), (tiny,))
        yield Case("float16", cls(), (floats(5, 17, dtype=np.float16),), HALF_TOLERANCE)
