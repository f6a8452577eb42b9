"""Gemm: matrix product with optional transposition, scaling and a broadcast addend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    NUMBERS,
    input_type,
    optional_type,
    require_broadcast,
    require_dtype,
    require_inputs,
    require_rank,
    require_same_dtype,
    result_shape,
)
from smelt.ops._shape_operands import optional_array, present
from smelt.types import TensorType, assume_equal, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Gemm(Op):
    """``alpha * A' @ B' + beta * C``, where A' and B' are A and B, transposed if requested.

    Shapes: A' ``[M, K]``, B' ``[K, N]``, C broadcasts to ``[M, N]`` or is absent.

    Dtypes: numbers, one for all.

    Raises ShapeError: when the inner extents differ or C does not broadcast.

    Source: ONNX Gemm-13 (transA and transB).
    """

    name: ClassVar[str] = "gemm"

    alpha: float = 1.0
    """Scale of the product."""
    beta: float = 1.0
    """Scale of the addend."""
    trans_a: bool = False
    """Whether A is transposed."""
    trans_b: bool = False
    """Whether B is transposed."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 3)
        a, b = input_type(self, inputs, 0), input_type(self, inputs, 1)
        c = optional_type(self, inputs, 2)
        require_dtype(a, NUMBERS, "the input of gemm")
        require_same_dtype(a, b, c)
        require_rank(a, "A of gemm", 2)
        require_rank(b, "B of gemm", 2)
        rows, inner = a.shape[::-1] if self.trans_a else a.shape
        depth, columns = b.shape[::-1] if self.trans_b else b.shape
        what = f"axis {int(not self.trans_a)} of input 0 and axis {int(self.trans_b)} of input 1"
        if not assume_equal(inner, depth, what):
            raise ShapeError(f"A' has {inner} columns and B' has {depth} rows")
        shape = (rows, columns)
        require_broadcast(c, shape, "C of gemm")
        return (TensorType(a.dtype, shape),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        inner = input_type(self, inputs, 0).shape[0 if self.trans_a else 1]
        return 2 * element_count(result_shape(self, inputs)) * inner

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = widen(present(inputs, 0)), widen(present(inputs, 1))
        c = optional_array(inputs, 2)
        product = np.matmul(a.T if self.trans_a else a, b.T if self.trans_b else b)
        if self.alpha != 1.0:
            product = product * a.dtype.type(self.alpha)
        if c is not None:
            product = product + widen(c) * a.dtype.type(self.beta)
        return (narrow(product, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: Gemm, m: int, k: int, n: int, c: tuple[int, ...] | None) -> Case:
            a = floats(*((k, m) if op.trans_a else (m, k)))
            b = floats(*((n, k) if op.trans_b else (k, n)), seed=1)
            addend = None if c is None else floats(*c, seed=2)
            return Case(name, op, (a, b, addend), constants=frozenset({1, 2}))

        yield case("plain", cls(), 5, 17, 33, None)
        yield case("row_bias", cls(trans_b=True), 3, 33, 10, (10,))
        yield case("column_bias", cls(), 7, 3, 17, (7, 1))
        yield case("full_addend", cls(), 4, 5, 6, (4, 6))
        yield case("scalar_addend", cls(), 4, 5, 6, ())
        yield case("transposed", cls(trans_a=True, trans_b=True), 9, 8, 7, (1, 7))
        yield case("scaled", cls(alpha=0.5, beta=-2.0, trans_a=True), 9, 65, 31, (31,))
        yield case("vector", cls(trans_b=True), 1, 129, 1, (1,))
        yield case("empty_batch", cls(), 0, 5, 6, (6,))
        half = np.float16
        arrays = (floats(3, 17, dtype=half), floats(17, 9, dtype=half), floats(9, dtype=half))
        yield Case("float16", cls(), arrays, HALF_TOLERANCE, frozenset({1, 2}))
