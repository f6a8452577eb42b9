"""MatMulInteger: matrix product of int8 or uint8 tensors with int32 sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import integers
from smelt.ops._quantized import check_zero_point, subtract_zero_point, wrap_to_int32
from smelt.ops._shape import (
    input_type,
    optional_type,
    require_dtype,
    require_inputs,
    require_shape,
)
from smelt.ops._shape_operands import optional_array, present
from smelt.ops.mat_mul import MatMul
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType

_INT8_TYPES = frozenset({DType.INT8, DType.UINT8})


@dataclass(frozen=True)
class MatMulInteger(Op):
    """Exact product ``(A - a_zero_point) @ (B - b_zero_point)``.

    Inputs are A, B, and optionally a_zero_point, b_zero_point and a bias (an extension of ONNX).
    Sums wrap around in int32.

    Shapes: as MatMul's; a_zero_point is one number or one for each row ``[M]``, b_zero_point one or
    one for each column ``[N]``; bias ``[N]``.

    Dtypes: int8 or uint8, each zero point like its matrix; bias and result int32.

    Raises ShapeError: when the inner extents differ, the stacks do not broadcast, or the shape of
    a zero point or the bias does not match.

    Source: ONNX MatMulInteger-10, with a bias.
    """

    name: ClassVar[str] = "mat_mul_integer"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 5)
        a, b = input_type(self, inputs, 0), input_type(self, inputs, 1)
        bias = optional_type(self, inputs, 4)
        for kind, what in ((a, "A"), (b, "B")):
            require_dtype(kind, _INT8_TYPES, f"{what} of {self.name}")
        check_zero_point(a, optional_type(self, inputs, 2), a.shape[-2:-1], "a_zero_point")
        check_zero_point(b, optional_type(self, inputs, 3), b.shape[-1:], "b_zero_point")
        if bias is not None:
            require_dtype(bias, {DType.INT32}, f"the bias of {self.name}")
            require_shape(bias, b.shape[-1:], f"the bias of {self.name}")
        return MatMul().infer(self._as_real(inputs))

    def _as_real(self, inputs: Sequence[Operand | None]) -> list[Operand]:
        """Return operands for A and B with the type of the product, int32."""
        shapes = (input_type(self, inputs, position).shape for position in (0, 1))
        return [Operand(TensorType(DType.INT32, shape)) for shape in shapes]

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return MatMul().count_flop(self._as_real(inputs))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = present(inputs, 0), present(inputs, 1)
        wide = subtract_zero_point(a, optional_array(inputs, 2), a.ndim - 2)
        factor = subtract_zero_point(b, optional_array(inputs, 3), b.ndim - 1)
        total = np.asarray(np.matmul(wide, factor))
        bias = optional_array(inputs, 4)
        return (wrap_to_int32(total if bias is None else total + bias),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1, 2, 3, 4})
        zero = np.array(100, np.uint8)
        bias = integers(19, low=-9999, high=9999, seed=2)
        for name, rows, depth in (("matrix", 7, 33), ("row", 1, 130), ("deep", 20, 256)):
            a = integers(rows, depth, dtype=np.uint8, high=256)
            b = integers(depth, 19, dtype=np.int8, low=-128, high=128, seed=1)
            yield Case(name, cls(), (a, b, zero, None, bias), constants=constants)
        a, b = integers(2, 3, 5, 8, dtype=np.uint8), integers(8, 19, dtype=np.int8, low=-9)
        yield Case("stack", cls(), (a, b, zero, None, bias), constants=constants)
        yield Case("no_zero_points", cls(), (a, b), constants=frozenset({1}))
        signed = integers(5, 8, dtype=np.int8, low=-128, high=128)
        below = np.array(-9, np.int8)
        yield Case("int8", cls(), (signed, b, below, None, bias), constants=constants)
        several = (integers(5, dtype=np.int8, seed=3), integers(19, dtype=np.int8, seed=4))
        yield Case("zero_points_apart", cls(), (signed, b, *several), constants=constants)
        yield Case("varying", cls(), (signed, integers(8, 3, dtype=np.uint8, high=256)))
