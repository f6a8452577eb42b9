"""ConstantOfShape: a tensor filled with one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import require_inputs, shape_text
from smelt.ops._shape_operands import MAXIMUM_DIMS, dims_at, known_dims, present
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class ConstantOfShape(Op):
    """A tensor whose elements are all ``value``.

    Shapes: (shape[rank]) -> shape.

    Dtypes: int64 -> ``dtype``.

    Raises ShapeError: when the shape is not known or has a negative extent.

    Source: ONNX ConstantOfShape-21, whose tensor ``value`` is split into ``dtype`` and ``value``.
    """

    name: ClassVar[str] = "constant_of_shape"

    dtype: DType = DType.FLOAT32
    value: float | int | bool = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        shape = dims_at(self, inputs, 0, "the shape") or ()
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise ShapeError(f"the shape {shape_text(shape)} has a negative extent")
        return (TensorType(self.dtype, shape),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        shape = known_dims(inputs, 0)
        if shape is None or len(shape) > 1 or not self.dtype.is_integer:
            return None
        count = shape[0] if shape else 1
        if not isinstance(count, int) or count > MAXIMUM_DIMS:
            return None
        return (int(self.value),) * count

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        shape = tuple(int(x) for x in present(inputs, 0))
        return (np.full(shape, self.value, self.dtype.numpy),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        zero = frozenset({0})
        shape = np.array([2, 3], np.int64)
        yield Case("zeros", cls(), (shape,), constants=zero)
        yield Case("float16", cls(DType.FLOAT16, 1.5), (shape,), constants=zero)
        yield Case("int64", cls(DType.INT64, -7), (shape,), constants=zero)
        yield Case("bool", cls(DType.BOOL, value=True), (shape,), constants=zero)
        yield Case("infinity", cls(DType.FLOAT32, float("-inf")), (shape,), constants=zero)
        yield Case("scalar", cls(DType.INT32, 3), (np.array([], np.int64),), constants=zero)
        yield Case("no elements", cls(), (np.array([0, 4]),), constants=zero)
