"""Flatten: reshape to a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs, shape_text
from smelt.ops._shape_operands import count_elements, present, sample
from smelt.types import TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class Flatten(Op):
    """The tensor as a matrix: axes before ``axis`` become rows, the other axes columns.

    Shapes: (data) -> [product of the extents before ``axis``, product of the others].

    Dtypes: any.

    Raises ShapeError: when ``axis`` is outside the rank.

    Source: ONNX Flatten-21.
    """

    name: ClassVar[str] = "flatten"

    axis: int = 1

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        if not -data.rank <= self.axis <= data.rank:
            raise ShapeError(f"axis {self.axis} is out of range for {shape_text(data.shape)}")
        split = self.axis + data.rank if self.axis < 0 else self.axis
        rows, columns = data.shape[:split], data.shape[split:]
        return (TensorType(data.dtype, (count_elements(rows), count_elements(columns))),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        split = self.axis + data.ndim if self.axis < 0 else self.axis
        rows = int(np.prod(data.shape[:split], dtype=np.int64))
        columns = int(np.prod(data.shape[split:], dtype=np.int64))
        return (data.reshape(rows, columns).copy(),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for axis in (0, 1, 2, 4, -1, -4):
            yield Case(f"axis {axis}", cls(axis), (sample(2, 3, 2, 5),))
        yield Case("vector", cls(), (sample(5),))
        yield Case("scalar", cls(0), (sample(),))
        yield Case("no elements", cls(), (sample(0, 3, 4),))
        yield Case("float16", cls(), (sample(2, 3, 2, dtype="float16"),))
        yield Case("int64", cls(), (sample(2, 3, 2, dtype="int64"),))
