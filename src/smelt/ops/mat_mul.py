"""MatMul: matrix product of stacks of matrices, with the broadcasting of numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats, integers
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    NUMBERS,
    broadcast_shapes,
    input_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
    result_shape,
)
from smelt.ops._shape_operands import present
from smelt.types import TensorType, assume_equal, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class MatMul(Op):
    """``A @ B``: the last two axes are matrices, the axes before them broadcast.

    Shapes: ``[*a, M, K]`` and ``[*b, K, N]`` give ``[*broadcast(a, b), M, N]``; a vector is
    a row on the left and a column on the right, and its axis of extent 1 is removed from the
    result.

    Dtypes: numbers, one for both.

    Raises ShapeError: when an input is a scalar, the inner extents differ or the stacks do not
    broadcast.

    Source: ONNX MatMul-13.
    """

    name: ClassVar[str] = "mat_mul"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        a, b = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(a, NUMBERS, "the input of mat_mul")
        require_same_dtype(a, b)
        if not a.rank or not b.rank:
            raise ShapeError("the inputs of mat_mul must not be scalars")
        inner, depth = a.shape[-1], b.shape[max(b.rank - 2, 0)]
        what = f"axis {a.rank - 1} of input 0 and axis {max(b.rank - 2, 0)} of input 1"
        if not assume_equal(inner, depth, what):
            raise ShapeError(f"A has {inner} columns and B has {depth} rows")
        stack = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        rows = a.shape[-2:-1]
        columns = b.shape[-1:] if b.rank > 1 else ()
        return (TensorType(a.dtype, (*stack, *rows, *columns)),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        inner = input_type(self, inputs, 0).shape[-1]
        return 2 * element_count(result_shape(self, inputs)) * inner

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = present(inputs, 0), present(inputs, 1)
        return (narrow(np.asarray(np.matmul(widen(a), widen(b))), a.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> Case:
            return Case(name, cls(), (floats(*a), floats(*b, seed=1)))

        yield case("matrices", (17, 33), (33, 5))
        yield case("stack", (2, 3, 7, 9), (2, 3, 9, 11))
        yield case("shared_right", (3, 5, 17), (17, 9))
        yield case("shared_left", (5, 17), (4, 17, 3))
        yield case("broadcast_stacks", (2, 1, 3, 4), (5, 4, 1))
        yield case("vector_left", (9,), (2, 9, 5))
        yield case("vector_right", (2, 5, 9), (9,))
        yield case("vectors", (33,), (33,))
        yield case("empty_stack", (0, 3, 4), (4, 5))
        yield Case(
            "constant_right", cls(), (floats(7, 65), floats(65, 31)), constants=frozenset({1})
        )
        half = np.float16
        yield Case(
            "float16", cls(), (floats(5, 17, dtype=half), floats(17, 3, dtype=half)), HALF_TOLERANCE
        )
        yield Case("int32", cls(), (integers(3, 5, low=-9), integers(5, 4, low=-9, seed=1)))
