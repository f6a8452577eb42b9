"""Shapes as data, and tensors made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._shape import NUMBERS, input_type, input_types, require_scalar, shape_text
from smelt.ops._shape_operands import (
    MAXIMUM_DIMS,
    count_elements,
    dims_at,
    known_dims,
    number_at,
    present,
    sample,
)
from smelt.types import Dim, DType, TensorType, ValueType, ceil_div, is_never_negative, override


class Shape(BuiltinOp):
    """The extents of a tensor, or those of the axes from ``start`` to ``end``, exclusive.

    Shapes: (data) -> [number of extents].

    Dtypes: any -> int64.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Shape-21.
    """

    is_recipe_step = True

    start: int = 0
    """First axis whose extent is returned; a negative one counts from the end."""
    end: int | None = None
    """Axis at which the extents end, exclusive; a negative one counts from the end, and None
    includes the last axis."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1)
        extents = data.shape[self.start : self.end]
        return (TensorType(DType.INT64, (len(extents),)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return input_type(self, inputs, 0).shape[self.start : self.end]

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.array(present(inputs, 0).shape[self.start : self.end], np.int64),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("all", cls(), (sample(2, 3, 5),))
        yield Case("from an axis", cls(1), (sample(2, 3, 5),))
        yield Case("negative bounds", cls(-2, -1), (sample(2, 3, 5, dtype="float16"),))
        yield Case("beyond the rank", cls(-9, 9), (sample(2, 3, dtype="int64"),))
        yield Case("nothing", cls(2, 1), (sample(2, 3, 5),))
        yield Case("scalar", cls(), (sample(),))
        yield Case("no elements", cls(), (sample(0, 4),))


class Size(BuiltinOp):
    """The number of elements of a tensor.

    Shapes: (data) -> scalar.

    Dtypes: any -> int64.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Size-21.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        input_types(self, inputs, 1)
        return (TensorType(DType.INT64, ()),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return (count_elements(input_type(self, inputs, 0).shape),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.array(present(inputs, 0).size, np.int64),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("matrix", cls(), (sample(2, 3),))
        yield Case("scalar", cls(), (sample(),))
        yield Case("no elements", cls(), (sample(3, 0, 2, dtype="int64"),))


class ConstantOfShape(BuiltinOp):
    """A tensor whose elements are all ``value``.

    Shapes: (shape[rank]) -> shape.

    Dtypes: int64 -> ``dtype``.

    Raises ShapeError: when the shape is not known or has a negative extent, or an integer result
    cannot have the value.

    Source: ONNX ConstantOfShape-21, whose tensor ``value`` is split into ``dtype`` and ``value``.
    """

    is_recipe_step = True

    dtype: DType = DType.FLOAT32
    """Element type of the result."""
    value: float | int | bool = 0
    """Value of every element."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        input_types(self, inputs, 1)
        shape = dims_at(self, inputs, 0, "the shape") or ()
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise ShapeError(f"the shape {shape_text(shape)} has a negative extent")
        if self.dtype.is_integer:
            limits = np.iinfo(self.dtype.numpy)
            if not limits.min <= self.value <= limits.max:  # nor is it a NaN
                raise ShapeError(f"the value {self.value} does not fit into {self.dtype.value}")
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


class Range(BuiltinOp):
    """Numbers from ``start`` to ``limit``, exclusive, with a step of ``delta``.

    Shapes: (start scalar, limit scalar, delta scalar) -> [count].

    Dtypes: numbers, all the same.

    Raises ShapeError: when an input is not known, or ``delta`` is zero or symbolic.

    Source: ONNX Range-11.
    """

    is_recipe_step = True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        kinds = input_types(self, inputs, 3, dtypes=NUMBERS)
        for kind in kinds:
            require_scalar(kind, "a bound of range")
        return (TensorType(kinds[0].dtype, (self._count(inputs),)),)

    def _count(self, inputs: Sequence[Operand | None]) -> Dim:
        """Return the number of elements, which may be symbolic. Raises ShapeError."""
        values = [o.value for o in inputs if o is not None]
        arrays = [v for v in values if v is not None]
        if len(arrays) == 3:
            return _count_steps(*(a.item() for a in arrays))
        start, limit, delta = (number_at(self, inputs, i, "each bound") for i in range(3))
        if not isinstance(delta, int) or delta == 0:
            raise ShapeError(f"the step of range is {delta}; it must be a constant other than 0")
        gap = limit - start if delta > 0 else start - limit
        count = ceil_div(gap, abs(delta))
        # If ``start`` is beyond ``limit`` for all symbol values, there are no elements.
        return 0 if is_never_negative(-count) else count

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        bounds = [known_dims(inputs, i) for i in range(3)]
        count = self._count(inputs)
        start, _, delta = (b[0] if b else None for b in bounds)
        if start is None or delta is None or not isinstance(count, int) or count > MAXIMUM_DIMS:
            return None
        return tuple(start + delta * i for i in range(count))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        start, limit, delta = (present(inputs, i) for i in range(3))
        count = _count_steps(start.item(), limit.item(), delta.item())
        steps = np.arange(count).astype(start.dtype)
        return ((start + steps * delta).astype(start.dtype).reshape(count),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        rows = {
            "int64": (0, 5, 1),
            "int32": (10, 4, -2),
            "float32": (1.0, 2.0, 0.25),
            "float64": (0.0, -1.0, -0.3),
            "int16": (3, 3, 1),
        }
        for dtype, row in rows.items():
            arrays = tuple(np.array(x, dtype) for x in row)
            yield Case(dtype, cls(), arrays, constants=frozenset({0, 1, 2}))
        backwards = tuple(np.array(x, np.int64) for x in (5, 0, 1))
        yield Case("nothing", cls(), backwards, constants=frozenset({0, 1, 2}))


def _count_steps(start: float, limit: float, delta: float) -> int:
    """Return the number of elements. Raises ShapeError when it is not finite."""
    if not delta or not all(math.isfinite(x) for x in (start, limit, delta)):
        raise ShapeError(
            f"the number of elements of range from {start} to {limit} with step {delta} is not "
            "finite"
        )
    if all(isinstance(x, int) for x in (start, limit, delta)):
        return max(-int((start - limit) // delta), 0)
    return max(math.ceil((limit - start) / delta), 0)
