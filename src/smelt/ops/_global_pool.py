"""Base class of the global poolings, which reduce each channel to one number."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats, integers
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    SHORT_INTEGERS,
    input_type,
    require_dtype,
    require_inputs,
    require_rank,
)
from smelt.ops._shape_operands import present
from smelt.types import DType, TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class GlobalPool(Op):
    """Reduction over all spatial axes of a channel."""

    @abstractmethod
    def _result_dtype(self, dtype: DType, /) -> DType:
        """Return the element type of the result for inputs of ``dtype``."""

    @abstractmethod
    def _pool(self, x: Array, axes: tuple[int, ...], /) -> Array:
        """Return the result with the pooled axes kept with extent 1."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS | SHORT_INTEGERS, f"the input of {self.name}")
        require_rank(x, f"the input of {self.name}", 2, 99)
        for axis, extent in enumerate(x.shape[2:], 2):
            if not assume_at_least(extent, 1, f"axis {axis} of input 0"):
                raise ShapeError(f"the channels of {x} have no elements to pool")
        return (TensorType(self._result_dtype(x.dtype), (*x.shape[:2], *[1] * (x.rank - 2))),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        y = self._pool(widen(x), tuple(range(2, x.ndim)))
        dtype = self._result_dtype(DType.from_numpy(x.dtype))
        return (narrow(np.asarray(y), dtype.numpy),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("7x7", cls(), (floats(1, 33, 7, 7),))
        yield Case("batch", cls(), (floats(3, 17, 5, 9),))
        yield Case("one_axis", cls(), (floats(2, 3, 13),))
        yield Case("three_axes", cls(), (floats(1, 3, 2, 3, 5, low=-2.0, high=-1.0),))
        yield Case("empty_batch", cls(), (floats(0, 3, 4, 4),))
        yield Case("float16", cls(), (floats(1, 9, 6, 6, dtype=np.float16),), HALF_TOLERANCE)
        yield Case("uint8", cls(), (integers(2, 70, 7, 7, dtype=np.uint8, high=256),))
        signed = integers(1, 33, 5, 6, dtype=np.int8, low=-128, high=128)
        yield Case("int8", cls(), (signed,))
