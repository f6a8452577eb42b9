"""Shape: the extents of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs
from smelt.ops._shape_operands import present, sample
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Shape(Op):
    """The extents of a tensor, or those of the axes from ``start`` to ``end``, exclusive.

    Shapes: (data) -> [number of extents].

    Dtypes: any -> int64.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Shape-21.
    """

    name: ClassVar[str] = "shape"

    start: int = 0
    end: int | None = None

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        extents = input_type(self, inputs, 0).shape[self.start : self.end]
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
