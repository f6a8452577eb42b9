"""Div: the quotient of two tensors; integers are divided towards zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.ops._reference_numerics import divide_towards_zero
from smelt.ops._shape_operands import divide_dims
from smelt.types import assume_at_least, is_never_negative, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array
    from smelt.types import Dim


@dataclass(frozen=True)
class Div(Broadcast):
    """The quotient of two tensors; integers are divided towards zero.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; an integer divided by zero gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Div-14.
    """

    name: ClassVar[str] = "div"

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        if isinstance(left, int) and isinstance(right, int):
            magnitude = abs(left) // abs(right) if right else 0
            return magnitude if (left < 0) == (right < 0) else -magnitude
        if isinstance(right, int):
            # Towards zero is down only from 0 up.
            if right <= 0 or not is_never_negative(left, least=1):
                return None
            assume_at_least(left, 0, "what is divided")
            return left // right
        # By zero the quotient is zero, whatever is divided.
        quotient = divide_dims(left, right) if is_never_negative(right, least=1) else None
        if quotient:
            assume_at_least(right, 1, "the divisor")
        return quotient

    @override
    def compute(self, left: Array, right: Array) -> Array:
        if left.dtype.kind == "f":
            return np.divide(left, right)
        return divide_towards_zero(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "float32", "float16", "float64", low=2, high=12)
        left = np.array([7, -7, 7, -7, 0, 6, -1], np.int32)
        right = np.array([2, 2, -2, -2, 5, 3, 2], np.int32)
        for dtype in ("int32", "int64", "int8"):
            yield Case(f"{dtype} towards zero", cls(), (left.astype(dtype), right.astype(dtype)))
        yield Case(
            "uint8", cls(), (np.array([[255, 7], [9, 0]], np.uint8), np.array([2], np.uint8))
        )
        least = np.array([[-128], [7], [0]], np.int8)
        yield Case("by zero and minus one", cls(), (least, np.array([0, -1], np.int8)))
        zeros = np.array([1.0, -1.0, 0.5], np.float32), np.array([0.0, 0.0, 2.0], np.float32)
        yield Case("float by zero is infinite", cls(), zeros)
        huge = np.array([3e38, 1e38, 5e37], np.float32), np.array([2e38, 2e38, 3e38], np.float32)
        yield Case("huge divisors", cls(), huge)
