"""Comparisons, boolean and bitwise ops, and Where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from smelt.ir import Array, Case, Operand
from smelt.ops._base import Elementwise
from smelt.ops._broadcasting_ops import BroadcastingOp, Comparison, Logical
from smelt.ops._shape import (
    broadcast_shapes,
    input_types,
    require_choice,
    require_dtype,
    require_same_dtype,
)
from smelt.ops._shape_operands import input_at, known_dims, present, sample
from smelt.ops._unary import Unary
from smelt.types import Dim, DType, TensorType, ValueType, is_never_negative, override


class Equal(Comparison, function=np.equal):
    """Whether the first input is equal to the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Equal-19.
    """

    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)
    case_dtypes: ClassVar[tuple[str, ...]] = (*Comparison.case_dtypes, "bool")

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        gap = left - right
        if gap == 0:
            return 1
        return 0 if is_never_negative(gap - 1) or is_never_negative(-gap - 1) else None


class Greater(Comparison, function=np.greater):
    """Whether the first input is greater than the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Greater-13.
    """


class GreaterOrEqual(Comparison, function=np.greater_equal):
    """Whether the first input is at least the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX GreaterOrEqual-16.
    """


class Less(Comparison, function=np.less):
    """Whether the first input is less than the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Less-13.
    """


class LessOrEqual(Comparison, function=np.less_equal):
    """Whether the first input is at most the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX LessOrEqual-16.
    """


class And(Logical, function=np.logical_and):
    """Whether both inputs are true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX And-7.
    """


class Or(Logical, function=np.logical_or):
    """Whether at least one of both inputs is true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Or-7.
    """


class Xor(Logical, function=np.logical_xor):
    """Whether exactly one of both inputs is true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Xor-7.
    """


class Not(Unary, function=np.logical_not):
    """True where the element is false.

    Shapes: the input's.

    Dtypes: bool; the result's is the input's.

    Raises ShapeError: when there is not one boolean input.

    Source: ONNX Not-1.
    """

    allowed: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("line", cls(), (np.arange(33) % 3 == 0,))
        yield Case("scalar", cls(), (np.ones((), np.bool_),))
        yield Case("empty", cls(), (np.zeros((0, 3), np.bool_),))


class BitwiseNot(Unary, function=np.invert):
    """The bitwise complement, ``~x``.

    Shapes: the input's.

    Dtypes: integers; the result's is the input's.

    Raises ShapeError: when there is not one integer input.

    Source: ONNX BitwiseNot-18.
    """

    allowed: ClassVar[frozenset[DType]] = frozenset(d for d in DType if d.is_integer)


class BitShift(BroadcastingOp):
    """The first input's bits shifted by the second input, to the left or right.

    Shapes: the inputs broadcast onto the result.

    Dtypes: unsigned integers; a shift by the width or more gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX BitShift-11.
    """

    dtypes: ClassVar[frozenset[DType]] = frozenset(d for d in DType if d.name.startswith("UINT"))

    direction: str = "LEFT"
    """Direction of the shift, "LEFT" or "RIGHT"."""

    @override
    def compute(self, left: Array, right: Array) -> Array:
        width = left.dtype.itemsize * 8
        shift = np.minimum(right, width - 1)
        shift_bits = np.left_shift if self.direction == "LEFT" else np.right_shift
        shifted = shift_bits(left, shift)
        return np.asarray(np.where(right < width, shifted, np.zeros_like(shifted)))

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_choice(self.direction, ("LEFT", "RIGHT"), f"direction of {self.name}")
        return super().infer(inputs)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for direction in ("LEFT", "RIGHT"):
            for dtype in ("uint8", "uint16", "uint32", "uint64"):
                bits = np.array([[16, 4, 1], [255, 7, 128]], dtype)
                counts = np.array([1, 2, 3], dtype)
                yield Case(f"{direction} {dtype}", cls(direction), (bits, counts))


class IsNaN(Unary, function=np.isnan):
    """True where the element is NaN.

    Shapes: the input's.

    Dtypes: floating-point; the result is bool.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX IsNaN-20.
    """

    name: ClassVar[str] = "is_nan"
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        x = np.array([[0, np.nan, 1], [np.inf, -np.inf, -3]], np.float32)
        yield Case("float32", cls(), (x,))
        yield Case("float16", cls(), (x.astype(np.float16),))


class IsInf(Unary):
    """True where the element is infinite and its sign is to be detected.

    Shapes: the input's.

    Dtypes: floating-point; the result is bool.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX IsInf-20.
    """

    result_dtype: ClassVar[DType | None] = DType.BOOL

    detect_negative: int = 1
    """Whether negative infinity counts."""
    detect_positive: int = 1
    """Whether positive infinity counts."""

    @override
    def _apply(self, x: Array, /) -> Any:
        negative = np.isneginf(x) & bool(self.detect_negative)
        return negative | (np.isposinf(x) & bool(self.detect_positive))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        x = np.array([[0, np.nan, 1], [np.inf, -np.inf, -3]], np.float32)
        yield Case("float32", cls(), (x,))
        yield Case("float16", cls(), (x.astype(np.float16),))
        yield Case("positive", cls(detect_negative=0), (x,))
        yield Case("negative", cls(detect_positive=0), (x,))
        yield Case("neither", cls(detect_negative=0, detect_positive=0), (x,))


class Where(Elementwise):
    """Elements of X where the condition is true, and of Y elsewhere.

    Inputs are condition, X and Y.

    Shapes: condition, X and Y broadcast onto the result.

    Dtypes: the condition is bool; X and Y have the same type, which may be any.

    Raises ShapeError: when the inputs do not broadcast or X and Y have different types.

    Source: ONNX Where-16.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        condition, x, y = input_types(self, inputs, 3)
        require_dtype(condition, {DType.BOOL}, "the condition of where")
        require_same_dtype(x, y)
        return (TensorType(x.dtype, broadcast_shapes(condition.shape, x.shape, y.shape)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        flags = _known_flags(input_at(inputs, 0))
        x, y = known_dims(inputs, 1), known_dims(inputs, 2)
        if not flags or not x or not y:
            return None
        length = max(len(flags), len(x), len(y))
        if {len(flags), len(x), len(y)} - {1, length}:
            return None
        return tuple(
            x[i % len(x)] if flags[i % len(flags)] else y[i % len(y)] for i in range(length)
        )

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.where(present(inputs, 0), present(inputs, 1), present(inputs, 2)),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for dtype in ("float32", "float16", "int64", "bool"):
            arrays = (sample(3, 4, dtype="bool"), sample(3, 4, dtype=dtype), sample(4, dtype=dtype))
            yield Case(dtype, cls(), arrays)
        condition = sample(2, 1, 5, dtype="bool")
        yield Case("all broadcast", cls(), (condition, sample(3, 1), sample()))
        yield Case("scalar condition", cls(), (np.asarray(1, np.bool_), sample(2, 2), sample(2, 1)))
        yield Case("no elements", cls(), (sample(0, 3, dtype="bool"), sample(3), sample(1)))


def _known_flags(condition: Operand | None) -> list[bool] | None:
    """Return the elements of a condition that is constant or compares dimensions, or None."""
    if condition is None:
        return None
    if condition.value is not None:
        return [bool(v) for v in condition.value.reshape(-1)] if condition.value.ndim < 2 else None
    return None if condition.dims is None else [d != 0 for d in condition.dims]
