"""Compress: slices of a tensor that a condition selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import input_type, normalize_axis, require_dtype, require_inputs, require_rank
from smelt.ops._shape_operands import count_elements, operand_at, present, sample
from smelt.types import DType, SymbolicDim, TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Compress(Op):
    """The slices of data along an axis for which the condition is true.

    Without an axis, elements of the flattened data are selected. If the condition is not constant,
    the number of slices is the symbol ``count_symbol``, which a run determines; the graph declares
    its upper bound.

    Shapes: (data, condition[k]) -> data's, where ``axis`` has the number of selected slices; k may
    be less than the extent of the axis.

    Dtypes: any; the condition is bool.

    Raises ShapeError: when the condition is not a vector or longer than the axis.

    Source: ONNX Compress-11.
    """

    name: ClassVar[str] = "compress"

    axis: int | None = None
    """Axis of the slices; None for the flattened data."""
    count_symbol: str = "compress_count"
    """Symbol of the number of slices."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        data, condition = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_dtype(condition, {DType.BOOL}, "the condition of compress")
        require_rank(condition, "the condition of compress", 1)
        count: Dim = SymbolicDim.symbol(self.count_symbol)
        operand = operand_at(inputs, 1)
        if operand is not None and operand.value is not None:
            count = int(np.count_nonzero(operand.value))
        if self.axis is None:
            self._check(condition.shape[0], count_elements(data.shape), "elements of input 0")
            return (TensorType(data.dtype, (count,)),)
        axis = normalize_axis(self.axis, data.rank)
        self._check(condition.shape[0], data.shape[axis], f"axis {axis} of input 0")
        shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
        return (TensorType(data.dtype, shape),)

    @staticmethod
    def _check(length: Dim, extent: Dim, what: str) -> None:
        if not assume_at_least(extent, length, f"{what} and the condition"):
            raise ShapeError(
                f"the condition has {length} elements, more than the {extent} of its axis"
            )

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.compress(present(inputs, 1), present(inputs, 0), self.axis),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        condition = np.array([False, True, True])
        yield Case("rows", cls(0), (sample(3, 4), condition))
        yield Case("columns, short condition", cls(1), (sample(2, 5), condition))
        yield Case("flat", cls(), (sample(3, 2), np.array([True, False, False, False, True])))
        constant = frozenset({1})
        yield Case(
            "constant", cls(-1), (sample(2, 3, dtype="int64"), condition), constants=constant
        )
