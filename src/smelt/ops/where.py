"""Where: elements of one of two tensors, selected by a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._shape import (
    broadcast_shapes,
    input_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.ops._shape_operands import known_dims, operand_at, present, sample
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


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
