"""Concat: concatenation of tensors along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import (
    input_type,
    known,
    normalize_axis,
    require_inputs,
    require_rank,
    require_same_dtype,
    shape_text,
)
from smelt.ops._shape_operands import MAXIMUM_DIMS, known_dims, present, sample
from smelt.types import TensorType, assume_equal, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Concat(Op):
    """The inputs concatenated along an axis.

    Shapes: equal except for ``axis``, along which the result has the sum of the extents.

    Dtypes: any, the same for all.

    Raises ShapeError: when an input is absent, an extent of another axis differs, or ``axis`` is
    out of range.

    Source: ONNX Concat-13.
    """

    name: ClassVar[str] = "concat"

    axis: int

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 1 << 16)
        kinds = [input_type(self, inputs, i) for i in range(len(inputs))]
        first = kinds[0]
        require_same_dtype(*kinds)
        axis = normalize_axis(self.axis, first.rank)
        shape = list(first.shape)
        for index, kind in enumerate(kinds[1:], 1):
            require_rank(kind, f"input {index} of concat", first.rank)
            for position, extent in enumerate(kind.shape):
                if position == axis:
                    shape[axis] = shape[axis] + extent
                elif not assume_equal(
                    shape[position], extent, f"axis {position} of inputs 0 and {index}"
                ):
                    texts = f"{shape_text(first.shape)} and {shape_text(kind.shape)}"
                    raise ShapeError(
                        f"shapes {texts} differ on an axis other than {axis}, the concatenated one"
                    )
                else:
                    shape[position] = known(shape[position], extent)
        return (TensorType(first.dtype, tuple(shape)),)

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        parts = [known_dims(inputs, i) for i in range(len(inputs))]
        known_parts = [p for p in parts if p is not None]
        if len(known_parts) < len(parts) or sum(map(len, known_parts)) > MAXIMUM_DIMS:
            return None
        return tuple(d for p in known_parts for d in p)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [present(inputs, i) for i in range(len(inputs))]
        return (np.concatenate(arrays, self.axis),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("channels", cls(1), (sample(2, 3, 4, 4), sample(2, 5, 4, 4), sample(2, 1, 4, 4)))
        yield Case("last axis", cls(-1), (sample(3, 2), sample(3, 7)))
        yield Case("first axis", cls(0), (sample(1, 4), sample(2, 4)))
        yield Case("one input", cls(0), (sample(3),))
        yield Case("an empty part", cls(0), (sample(0, 2), sample(3, 2)))
        for dtype in ("float16", "int64", "bool", "uint8"):
            yield Case(dtype, cls(1), (sample(2, 2, dtype=dtype), sample(2, 3, dtype=dtype)))
