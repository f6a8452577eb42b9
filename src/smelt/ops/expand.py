"""Expand: a tensor broadcast to a shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import broadcast_shapes, input_type, require_inputs, shape_text
from smelt.ops._shape_operands import MAXIMUM_DIMS, dims_at, known_dims, present, sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Expand(Op):
    """The tensor broadcast with a shape; an extent of 1 in the shape keeps that of data.

    Shapes: (data, shape[k]) -> the shape to which both broadcast.

    Dtypes: any; the shape is int64.

    Raises ShapeError: when the shape is not known or does not broadcast with data's.

    Source: ONNX Expand-13.
    """

    name: ClassVar[str] = "expand"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data = input_type(self, inputs, 0)
        shape = dims_at(self, inputs, 1, "the shape") or ()
        for extent in shape:
            if isinstance(extent, int) and extent < 0:
                raise ShapeError(f"the shape {shape_text(shape)} of expand has a negative extent")
        return (TensorType(data.dtype, broadcast_shapes(data.shape, shape)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        dims, shape = known_dims(inputs, 0), known_dims(inputs, 1)
        if dims is None or shape is None or len(shape) > 1:
            return None
        count = shape[0] if shape else 1
        if not isinstance(count, int) or count > MAXIMUM_DIMS:
            return None
        return dims * count if len(dims) == 1 else dims

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        wanted = tuple(int(x) for x in present(inputs, 1))
        shape = np.broadcast_shapes(data.shape, wanted)
        return (np.array(np.broadcast_to(data, shape), order="C"),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        yield Case("one axis", cls(), (sample(3, 1), np.array([3, 4])), constants=one)
        yield Case("more axes", cls(), (sample(3, 1), np.array([2, 1, 6])), constants=one)
        yield Case("fewer axes", cls(), (sample(2, 1, 4), np.array([3, 1])), constants=one)
        yield Case("scalar", cls(), (sample(), np.array([2, 3])), constants=one)
        none = np.array([], np.int64)
        yield Case("scalar to a scalar", cls(), (sample(), none), constants=one)
        yield Case("to nothing", cls(), (sample(1, 3), np.array([0, 3])), constants=one)
        for dtype in ("float16", "int64", "bool"):
            array = sample(1, 5, dtype=dtype)
            yield Case(dtype, cls(), (array, np.array([4, 1])), constants=one)
