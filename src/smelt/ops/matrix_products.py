"""Products of matrices: Gemm, MatMul, MatMulInteger and Einsum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE, floats, integers
from smelt.ops._quantized import check_integer_product, subtract_zero_point, wrap_to_int32
from smelt.ops._reference_numerics import narrow, truncate, widen
from smelt.ops._shape import (
    NUMBERS,
    all_input_types,
    broadcast_shapes,
    input_type,
    input_types,
    known,
    optional_type,
    require_broadcast,
    require_rank,
    result_shape,
)
from smelt.ops._shape_operands import input_at, present, sample
from smelt.types import DType, TensorType, assume_equal, counted, element_count, override

if TYPE_CHECKING:
    from smelt.types import Dim, Shape, ValueType

_INTEGER_OPERATIONS: Final = 8
"""Operations counted for one of integers, whose products numpy computes without a library."""


class MatrixProduct(BuiltinOp):
    """Product of two matrices, or of stacks of them."""

    is_recipe_step = True

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        is_float = input_type(self, inputs, 0).dtype.is_float
        return self.count_flop(inputs) * (1 if is_float else _INTEGER_OPERATIONS)


class Gemm(MatrixProduct):
    """``alpha * A' @ B' + beta * C``, where A' and B' are A and B, transposed if requested.

    C is ignored if beta is 0. Integers whose alpha or beta is a fraction are scaled in float64, and
    their sum is rounded towards zero.

    Shapes: A' ``[M, K]``, B' ``[K, N]``, C broadcasts to ``[M, N]`` or is absent.

    Dtypes: numbers, one for all.

    Raises ShapeError: when the inner extents differ or C does not broadcast.

    Source: ONNX Gemm-13 (transA and transB).
    """

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
        a, b = input_types(self, inputs, 2, 3, NUMBERS)
        require_rank(a, "A of gemm", 2)
        require_rank(b, "B of gemm", 2)
        rows, inner = a.shape[::-1] if self.trans_a else a.shape
        depth, columns = b.shape[::-1] if self.trans_b else b.shape
        what = f"axis {int(not self.trans_a)} of input 0 and axis {int(self.trans_b)} of input 1"
        if not assume_equal(inner, depth, what):
            raise ShapeError(f"{what} have the extents {inner} and {depth}; they must be equal")
        shape = (rows, columns)
        require_broadcast(optional_type(self, inputs, 2), shape, "C of gemm")
        return (TensorType(a.dtype, shape),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        inner = input_type(self, inputs, 0).shape[0 if self.trans_a else 1]
        return 2 * element_count(result_shape(self, inputs)) * inner

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        a, b = widen(present(inputs, 0)), widen(present(inputs, 1))
        c = input_at(inputs, 2) if self.beta else None
        product = np.matmul(a.T if self.trans_a else a, b.T if self.trans_b else b)
        if a.dtype.kind in "iu" and not self.has_integer_scales:
            return (truncate(self._scaled(product.astype(np.float64), c), a.dtype),)
        return (narrow(self._scaled(product, c), present(inputs, 0).dtype),)

    @property
    def has_integer_scales(self) -> bool:
        """Whether alpha and beta are integers, by which products of integers are scaled exactly."""
        return all(float(s).is_integer() and abs(s) < 1 << 63 for s in (self.alpha, self.beta))

    @staticmethod
    def scale(factor: float, dtype: np.dtype[Any]) -> Array:
        """Return alpha or beta as an element of a dtype; integers wrap around."""
        if dtype.kind in "iu":
            return np.asarray(int(factor), np.int64).astype(dtype)
        return np.asarray(factor, dtype)

    def _scaled(self, product: Array, c: Array | None) -> Array:
        """Return ``alpha * product + beta * c`` in the product's dtype."""
        if self.alpha != 1.0:
            product = product * self.scale(self.alpha, product.dtype)
        if c is None:
            return product
        return np.asarray(product + c.astype(product.dtype) * self.scale(self.beta, product.dtype))

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


class MatMul(MatrixProduct):
    """``A @ B``: the last two axes are matrices, the axes before them broadcast.

    Shapes: ``[*a, M, K]`` and ``[*b, K, N]`` give ``[*broadcast(a, b), M, N]``; a vector is
    a row on the left and a column on the right, and its axis of extent 1 is removed from the
    result.

    Dtypes: numbers, one for both.

    Raises ShapeError: when an input is a scalar, the inner extents differ or the stacks do not
    broadcast.

    Source: ONNX MatMul-13.
    """

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        a, b = input_types(self, inputs, 2, dtypes=NUMBERS)
        if not a.rank or not b.rank:
            raise ShapeError("the inputs of mat_mul must not be scalars")
        inner, depth = a.shape[-1], b.shape[max(b.rank - 2, 0)]
        what = f"axis {a.rank - 1} of input 0 and axis {max(b.rank - 2, 0)} of input 1"
        if not assume_equal(inner, depth, what):
            raise ShapeError(f"{what} have the extents {inner} and {depth}; they must be equal")
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
        arrays = (floats(7, 65), floats(65, 31))
        yield Case("constant_right", cls(), arrays, constants=frozenset({1}))
        arrays = (floats(5, 17, dtype=np.float16), floats(17, 3, dtype=np.float16))
        yield Case("float16", cls(), arrays, HALF_TOLERANCE)
        yield Case("int32", cls(), (integers(3, 5, low=-9), integers(5, 4, low=-9, seed=1)))


class MatMulInteger(MatrixProduct):
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

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        a, b = input_types(self, inputs, 2, 5)
        rows, columns = a.shape[-2:-1], b.shape[-1:]
        check_integer_product(self, inputs, ("a_zero_point", rows), ("b_zero_point", columns))
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
        wide = subtract_zero_point(a, input_at(inputs, 2), a.ndim - 2)
        factor = subtract_zero_point(b, input_at(inputs, 3), b.ndim - 1)
        total = np.asarray(np.matmul(wide, factor))
        bias = input_at(inputs, 4)
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


class Einsum(BuiltinOp):
    """Sums of products that an equation of axis labels defines.

    Axes with the same label are iterated together. Labels that are not in the result are summed
    over. Without ``->`` the result has the axes of an ellipsis, then the labels that occur exactly
    once, in alphabetical order.

    Shapes: as the equation defines; the axes of ellipses broadcast.

    Dtypes: numbers, the same for all; 16-bit floats are summed in float32.

    Raises ShapeError: when the equation is malformed or does not fit the inputs.

    Source: ONNX Einsum-12.
    """

    equation: str
    """The equation, such as "bij,bjk->bik"."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        kinds = all_input_types(self, inputs, 64, NUMBERS)
        terms, result = self._terms()
        if len(terms) != len(kinds):
            raise ShapeError(
                f"einsum {self.equation!r} has {counted(len(terms), 'term')} for "
                f"{counted(len(kinds), 'input')}"
            )
        extents: dict[str, Dim] = {}
        dots: Shape = ()
        for term, kind in zip(terms, kinds, strict=True):
            dots = broadcast_shapes(dots, self._assign(term, kind, extents))
        before, dot, after = result.partition(".")
        if not all(label in extents for label in before + after):
            raise ShapeError(
                f"the output of einsum {self.equation!r} has a label that no input has"
            )
        ends = [[extents[label] for label in labels] for labels in (before, after)]
        return (TensorType(kinds[0].dtype, (*ends[0], *(dots if dot else ()), *ends[1])),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        extents: dict[str, Dim] = {}
        dots: Shape = ()
        for index, term in enumerate(self._terms()[0]):
            kind = input_type(self, inputs, index)
            dots = broadcast_shapes(dots, self._assign(term, kind, extents))
        return 2 * (len(inputs) - 1) * element_count((*extents.values(), *dots))

    def _terms(self) -> tuple[list[str], str]:
        """Return the labels of the inputs and the result, with "." for an ellipsis.

        Raises ShapeError when the equation is malformed.
        """
        text = self.equation.replace(" ", "").replace("...", ".")
        left, arrow, result = text.partition("->")
        terms = left.split(",")
        labels = [c for c in "".join(terms) if c != "."]
        if not arrow:
            unique_labels = sorted(c for c, n in Counter(labels).items() if n == 1)
            result = ("." if "." in left else "") + "".join(unique_labels)
        letters = all(c.isascii() and c.isalpha() for c in (*labels, *result.replace(".", "")))
        dots = max(t.count(".") for t in (*terms, result))
        if not letters or dots > 1 or len(set(result)) < len(result):
            raise ShapeError(
                f"einsum equation {self.equation!r} is malformed; expected a form such as "
                "'ij,jk->ik'"
            )
        return terms, result

    def _assign(self, term: str, kind: TensorType, extents: dict[str, Dim]) -> Shape:
        """Add the extents of the labels of an input; return the extents of its ellipsis."""
        before, dot, after = term.partition(".")
        free = kind.rank - len(before) - len(after)
        if free < 0 or (free and not dot):
            raise ShapeError(
                f"the number of labels in term {term!r} of einsum {self.equation!r} does not match "
                f"the rank of {kind}"
            )
        shape = (*kind.shape[: len(before)], *kind.shape[len(before) + free :])
        own: dict[str, Dim] = {}
        for label, extent in zip(before + after, shape, strict=True):
            # Axes of the same label do not broadcast within one input (a diagonal).
            if not assume_equal(own.setdefault(label, extent), extent, f"axes {label!r} of {term}"):
                raise ShapeError(f"the repeated label {label!r} has different extents in {kind}")
            other = extents.get(label, extent)
            what = f"extents of label {label!r}"
            if 1 not in (other, extent) and not assume_equal(other, extent, what):
                raise ShapeError(
                    f"label {label!r} of einsum {self.equation!r} has the extents {other} and "
                    f"{extent}; they must be equal"
                )
            extents[label] = (
                extent if other == 1 else other if extent == 1 else known(other, extent)
            )
        return kind.shape[len(before) : len(before) + free]

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [present(inputs, i) for i in range(len(inputs))]
        result = np.asarray(np.einsum(self.equation, *map(widen, arrays)))
        return (narrow(result, arrays[0].dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        rows: dict[str, tuple[tuple[int, ...], ...]] = {
            "ij,jk->ik": ((3, 4), (4, 5)),
            "bhid,bhjd->bhij": ((2, 2, 3, 4), (2, 2, 5, 4)),
            "ij->ji": ((3, 4),),
            "ii->i": ((4, 4),),
            "ij->": ((3, 4),),
            "i,j->ij": ((3,), (5,)),
            "...ij,...jk->...ik": ((2, 5, 3, 4), (2, 5, 4, 2)),
            "ij,jk": ((3, 4), (4, 2)),
            "i,i": ((6,), (6,)),
            "a,b,c->abc": ((2,), (3,), (4,)),
        }
        for equation, shapes in rows.items():
            yield Case(equation, cls(equation), tuple(sample(*s) for s in shapes))
        for dtype in ("float64", "int64"):
            arrays = (sample(2, 3, dtype=dtype), sample(3, 2, dtype=dtype))
            yield Case(dtype, cls("ij,jk->ik"), arrays)
