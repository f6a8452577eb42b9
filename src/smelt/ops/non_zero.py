"""NonZero: indices of the elements that are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Op
from smelt.ops._shape import input_type, require_inputs
from smelt.ops._shape_operands import operand_at, present, sample
from smelt.types import DType, SymbolicDim, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class NonZero(Op):
    """The indices of the elements that are not zero, in row-major order, one column for each.

    Unless the data is constant, their number is the symbol ``count_symbol``, which a run
    determines; the graph declares its upper bound.

    Shapes: (data[rank axes]) -> [rank, count_symbol].

    Dtypes: any -> int64.

    Raises ShapeError: when there is not exactly one input.

    Source: ONNX NonZero-13; a scalar counts as a vector of one element.
    """

    name: ClassVar[str] = "non_zero"

    count_symbol: str = "nonzero_count"
    """Symbol of the number of elements that are not zero."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        count: Dim = SymbolicDim.symbol(self.count_symbol)
        operand = operand_at(inputs, 0)
        if operand is not None and operand.value is not None:
            count = int(np.count_nonzero(operand.value))
        return (TensorType(DType.INT64, (max(data.rank, 1), count)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = np.atleast_1d(present(inputs, 0))
        return (np.array(np.nonzero(data), np.int64).reshape(data.ndim, -1),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("matrix", cls(), (np.array([[1, 0, 2], [0, 0, -3]], np.float32),))
        yield Case("bool", cls(), (sample(3, 4, dtype="bool"),))
        yield Case("none", cls(), (np.zeros((2, 3), np.int64),))
        yield Case("three axes", cls(), (sample(2, 3, 4, dtype="int64", low=-1, high=2),))
