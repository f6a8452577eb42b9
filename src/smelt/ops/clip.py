"""Clip: elements limited to a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import floats, integers
from smelt.ops._reference_numerics import required
from smelt.ops._shape import (
    NUMBERS,
    input_type,
    optional_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
)
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class Clip(Op):
    """``min(max(x, low), high)``; NaN stays NaN.

    Inputs are x, and optionally low and high. If low is above high the result is high.

    Shapes: low and high are scalars, or ``[1]``; the result's is x's.

    Dtypes: numbers, one for all.

    Raises ShapeError: when a limit is not a scalar.

    Source: ONNX Clip-13.
    """

    name: ClassVar[str] = "clip"

    @property
    @override
    def elementwise(self) -> bool:
        return True

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 3)
        x = input_type(self, inputs, 0)
        low, high = optional_type(self, inputs, 1), optional_type(self, inputs, 2)
        require_dtype(x, NUMBERS, "the input of clip")
        require_same_dtype(x, low, high)
        for limit, what in ((low, "lower"), (high, "upper")):
            if limit is not None and limit.shape not in ((), (1,)):
                raise ShapeError(f"the {what} limit of clip is {limit}, not one number")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, low, high = (*inputs, None, None)[:3]
        y = required(x)
        # Comparisons, unlike maximum and minimum, keep y if a limit is NaN.
        y = y if low is None else np.where(y < low.reshape(()), low.reshape(()), y)
        y = y if high is None else np.where(y > high.reshape(()), high.reshape(()), y)
        return (np.asarray(y),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1, 2})
        six, half = np.float32(6), np.float16(0.5)
        x = floats(2, 17, 5, 7, low=-9, high=9)
        yield Case("relu6", cls(), (x, np.array(0, np.float32), np.array(six)), constants=constants)
        yield Case("below", cls(), (x, np.array(-six), None), constants=constants)
        yield Case("above", cls(), (x, None, np.array(six)), constants=constants)
        yield Case("crossed", cls(), (x, np.array(six), np.array(-six)), constants=constants)
        yield Case("not_limited", cls(), (x, None, None))
        arrays = (floats(33, dtype=np.float16), np.array(-half), np.array(half))
        yield Case("float16", cls(), arrays, constants=constants)
        limits = (np.array(-3, np.int32), np.array(4, np.int32))
        yield Case("int32", cls(), (integers(33, low=-9, high=9), *limits), constants=constants)
