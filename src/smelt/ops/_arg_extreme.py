"""Base class and test cases of ArgMax and ArgMin."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._shape import NUMBERS, input_type, normalize_axis, require_dtype, require_inputs
from smelt.ops._shape_operands import present, sample
from smelt.types import DType, TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class ArgExtreme(Op):
    """Index of the largest or smallest element along an axis."""

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        data = input_type(self, inputs, 0)
        require_dtype(data, NUMBERS, f"input 0 of {self.name}")
        axis = normalize_axis(self.axis, data.rank)
        if not assume_at_least(data.shape[axis], 1, f"axis {axis} of input 0"):
            raise ShapeError(f"axis {axis} of {data} has no elements for {self.name}")
        kept = (1,) if self.keepdims else ()
        shape = (*data.shape[:axis], *kept, *data.shape[axis + 1 :])
        return (TensorType(DType.INT64, shape),)

    @abstractmethod
    def pick(self, data: Array) -> Array:
        """Return the index of the first extreme element along the axis."""

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data = present(inputs, 0)
        if self.select_last_index:
            picked = data.shape[self.axis] - 1 - self.pick(np.flip(data, self.axis))
        else:
            picked = self.pick(data)
        indices = np.asarray(picked, np.int64)
        return (np.expand_dims(indices, self.axis) if self.keepdims else indices,)


def arg_cases(make: Callable[..., ArgExtreme]) -> Iterator[Case]:
    """Yield the test cases of both ops."""
    ties = np.array([[2, 5, 5, 1, 1], [3, 3, 3, 3, 3]], np.float32)
    for last in (0, 1):
        yield Case(f"ties, last {last}", make(axis=1, select_last_index=last), (ties,))
        long = sample(2, 9001)
        yield Case(f"long rows, last {last}", make(axis=1, select_last_index=last), (long,))
    yield Case("first axis", make(), (sample(4, 3),))
    yield Case("without the axis", make(axis=1, keepdims=0), (sample(2, 7, 3),))
    yield Case("negative axis", make(axis=-2), (sample(2, 7, 3),))
    yield Case("to a scalar", make(keepdims=0), (sample(9),))
    yield Case("no rows", make(axis=1), (sample(0, 3),))
    for dtype in ("float16", "int32", "int64", "int8"):
        yield Case(dtype, make(axis=1), (sample(3, 11, dtype=dtype),))
