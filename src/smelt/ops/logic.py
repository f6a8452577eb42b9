"""Comparisons, boolean and bitwise ops, and Where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._broadcasting_ops import BroadcastingOp, broadcast_cases
from smelt.ops._shape import (
    broadcast_shapes,
    input_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import known_dims, operand_at, present, sample
from smelt.ops._unary import Unary
from smelt.types import DType, TensorType, is_never_negative, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


def _order_cases(op: BroadcastingOp) -> Iterator[Case]:
    """Yield the cases of an op that orders numbers."""
    dtypes = ("float32", "float16", "float64", "int32", "int64", "uint8")
    yield from broadcast_cases(op, *dtypes, low=-2, high=3)
    yield _special_values(op)


def _special_values(op: BroadcastingOp) -> Case:
    """Return the case of NaN, infinity and zeros of both signs."""
    left = np.array([np.nan, 1.0, np.inf, -0.0], np.float32)
    right = np.array([np.nan, np.nan, np.inf, 0.0], np.float32)
    return Case("NaN, infinity and negative zero", op, (left, right))


@dataclass(frozen=True)
class Equal(BroadcastingOp, function=np.equal):
    """Whether the first input is equal to the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Equal-19.
    """

    name: ClassVar[str] = "equal"
    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        gap = left - right
        if gap == 0:
            return 1
        return 0 if is_never_negative(gap - 1) or is_never_negative(-gap - 1) else None

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(
            cls(),
            "float32",
            "float16",
            "float64",
            "int32",
            "int64",
            "uint8",
            "bool",
            low=-2,
            high=3,
        )
        yield _special_values(cls())


@dataclass(frozen=True)
class Greater(BroadcastingOp, function=np.greater):
    """Whether the first input is greater than the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Greater-13.
    """

    name: ClassVar[str] = "greater"
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from _order_cases(cls())


@dataclass(frozen=True)
class GreaterOrEqual(BroadcastingOp, function=np.greater_equal):
    """Whether the first input is at least the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX GreaterOrEqual-16.
    """

    name: ClassVar[str] = "greater_or_equal"
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from _order_cases(cls())


@dataclass(frozen=True)
class Less(BroadcastingOp, function=np.less):
    """Whether the first input is less than the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Less-13.
    """

    name: ClassVar[str] = "less"
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from _order_cases(cls())


@dataclass(frozen=True)
class LessOrEqual(BroadcastingOp, function=np.less_equal):
    """Whether the first input is at most the second, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; the result is bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX LessOrEqual-16.
    """

    name: ClassVar[str] = "less_or_equal"
    result_dtype: ClassVar[DType | None] = DType.BOOL

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from _order_cases(cls())


@dataclass(frozen=True)
class And(BroadcastingOp, function=np.logical_and):
    """Whether both inputs are true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX And-7.
    """

    name: ClassVar[str] = "and"
    dtypes: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "bool")


@dataclass(frozen=True)
class Or(BroadcastingOp, function=np.logical_or):
    """Whether at least one of both inputs is true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Or-7.
    """

    name: ClassVar[str] = "or"
    dtypes: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "bool")


@dataclass(frozen=True)
class Xor(BroadcastingOp, function=np.logical_xor):
    """Whether exactly one of both inputs is true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Xor-7.
    """

    name: ClassVar[str] = "xor"
    dtypes: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "bool")


@dataclass(frozen=True)
class Not(Unary, function=np.logical_not):
    """True where the element is false.

    Shapes: the input's.

    Dtypes: bool; the result's is the input's.

    Raises ShapeError: when there is not one boolean input.

    Source: ONNX Not-1.
    """

    name: ClassVar[str] = "not"
    allowed: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("line", cls(), (np.arange(33) % 3 == 0,))
        yield Case("scalar", cls(), (np.ones((), np.bool_),))
        yield Case("empty", cls(), (np.zeros((0, 3), np.bool_),))


@dataclass(frozen=True)
class BitwiseNot(Unary, function=np.invert):
    """The bitwise complement, ``~x``.

    Shapes: the input's.

    Dtypes: integers; the result's is the input's.

    Raises ShapeError: when there is not one integer input.

    Source: ONNX BitwiseNot-18.
    """

    name: ClassVar[str] = "bitwise_not"
    allowed: ClassVar[frozenset[DType]] = frozenset(d for d in DType if d.is_integer)


@dataclass(frozen=True)
class BitShift(BroadcastingOp):
    """The first input's bits shifted by the second input, to the left or right.

    Shapes: the inputs broadcast onto the result.

    Dtypes: unsigned integers; a shift by the width or more gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX BitShift-11.
    """

    name: ClassVar[str] = "bit_shift"
    dtypes: ClassVar[frozenset[DType]] = frozenset(d for d in DType if d.name.startswith("UINT"))

    direction: str = "LEFT"
    """Direction of the shift, "LEFT" or "RIGHT"."""

    @override
    def compute(self, left: Array, right: Array) -> Array:
        width = left.dtype.itemsize * 8
        shift = np.minimum(right, width - 1)
        shifted = (
            np.left_shift(left, shift) if self.direction == "LEFT" else np.right_shift(left, shift)
        )
        return np.asarray(np.where(right < width, shifted, np.zeros_like(shifted)))

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if self.direction not in {"LEFT", "RIGHT"}:
            raise ShapeError(
                f"direction of {self.name} is {self.direction!r}; it must be LEFT or RIGHT"
            )
        return super().infer(inputs)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for direction in ("LEFT", "RIGHT"):
            for dtype in ("uint8", "uint16", "uint32", "uint64"):
                bits = np.array([[16, 4, 1], [255, 7, 128]], dtype)
                yield Case(
                    f"{direction} {dtype}", cls(direction), (bits, np.array([1, 2, 3], dtype))
                )


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class IsInf(Unary):
    """True where the element is infinite and its sign is to be detected.

    Shapes: the input's.

    Dtypes: floating-point; the result is bool.

    Raises ShapeError: when there is not one floating-point input.

    Source: ONNX IsInf-20.
    """

    name: ClassVar[str] = "is_inf"
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


@dataclass(frozen=True)
class Where(Op):
    """Elements of X where the condition is true, and of Y elsewhere.

    Inputs are condition, X and Y.

    Shapes: condition, X and Y broadcast onto the result.

    Dtypes: the condition is bool; X and Y have the same type, which may be any.

    Raises ShapeError: when the inputs do not broadcast or X and Y have different types.

    Source: ONNX Where-16.
    """

    name: ClassVar[str] = "where"

    @property
    @override
    def elementwise(self) -> bool:
        return True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 3)
        condition, x, y = (input_type(self, inputs, i) for i in range(3))
        require_dtype(condition, {DType.BOOL}, "the condition of where")
        require_same_dtype(x, y)
        return (TensorType(x.dtype, broadcast_shapes(condition.shape, x.shape, y.shape)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        flags, x, y = (
            _known_flags(operand_at(inputs, 0)),
            known_dims(inputs, 1),
            known_dims(inputs, 2),
        )
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
