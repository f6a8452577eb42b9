"""Size: the number of elements of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs
from smelt.ops._shape_operands import count_elements, present, sample
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Size(Op):
    """The number of elements of a tensor.

    Shapes: (data) -> scalar.

    Dtypes: any -> int64.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX Size-21.
    """

    name: ClassVar[str] = "size"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        input_type(self, inputs, 0)
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
