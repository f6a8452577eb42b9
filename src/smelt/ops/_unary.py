"""Base class of the elementwise ops of one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from smelt.ir import Array, Case, Operand
from smelt.ops._base import Elementwise
from smelt.ops._conformance_data import HALF_TOLERANCE, corner_cases, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, input_type, input_types
from smelt.ops._shape_operands import present
from smelt.types import Dim, DType, TensorType, ValueType, element_count, override


class Unary(Elementwise):
    """Elementwise op of one tensor."""

    is_recipe_step = True

    allowed: ClassVar[frozenset[DType]] = FLOATS
    """Element types of the input."""
    result_dtype: ClassVar[DType | None] = None
    """Element type of the result; None for that of the input."""
    case_range: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    """Range of the inputs in the cases."""
    variants: ClassVar[tuple[dict[str, float | str], ...]] = ()
    """Attributes of further ops of the cases, besides the op with the default attributes."""

    operations: ClassVar[int] = 0
    """Operations of the reference for one element, where it calls a function of Python for each."""

    def _apply(self, x: Array, /) -> Any:
        """Compute the op on an array; float16 and bfloat16 inputs are passed as float32.

        An op without attributes gives its ``function``; others override this method.
        """
        return type(self)._function(x)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes=self.allowed)
        return (TensorType(self.result_dtype or x.dtype, x.shape),)

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        return self.operations * element_count(input_type(self, inputs, 0).shape)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        with np.errstate(all="ignore"):
            y = self._apply(widen(x))
        return (narrow(np.asarray(y), self.result_dtype.numpy if self.result_dtype else x.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        low, high = cls.case_range
        if DType.FLOAT32 in cls.allowed:
            for number, attributes in enumerate(({}, *cls.variants)):
                op = replace(cls(), **attributes)
                name = f"variant{number}_" if number else ""
                x = floats(2, 3, 5, 7, low=low, high=high)
                yield Case(f"{name}rank_4", op, (x,))
                x = floats(17, 33, low=low, high=high, dtype=np.float16, seed=1)
                yield Case(f"{name}float16", op, (x,), tolerance=HALF_TOLERANCE)
                yield Case(f"{name}scalar", op, (floats(low=low, high=high, seed=2),))
            yield Case("empty", cls(), (floats(0, 3),))
            yield Case("line", cls(), (floats(1021, low=low, high=high, seed=3),))
        yield from corner_cases(cls(), cls.allowed)
