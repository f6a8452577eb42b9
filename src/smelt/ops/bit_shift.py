"""BitShift: the first input's bits shifted by the second input, to the left or right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case
from smelt.ops._broadcast import Broadcast
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import ValueType


@dataclass(frozen=True)
class BitShift(Broadcast):
    """The first input's bits shifted by the second input, to the left or right.

    Shapes: the inputs broadcast onto the result.

    Dtypes: unsigned integers; a shift by the width or more gives zero.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX BitShift-11.
    """

    name: ClassVar[str] = "bit_shift"
    dtypes: ClassVar[frozenset[DType]] = frozenset(d for d in DType if d.name.startswith("UINT"))

    direction: str = "LEFT"

    @override
    def compute(self, left: Array, right: Array) -> Array:
        width = left.dtype.itemsize * 8
        shift = np.minimum(right, width - 1)
        made = (
            np.left_shift(left, shift) if self.direction == "LEFT" else np.right_shift(left, shift)
        )
        return np.asarray(np.where(right < width, made, np.zeros_like(made)))

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        if self.direction not in {"LEFT", "RIGHT"}:
            raise ShapeError(
                f"direction of {self.name} is {self.direction!r}; it must be LEFT or RIGHT"
            )
        return super().infer(inputs)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for direction in ("LEFT", "RIGHT"):
            for dtype in ("uint8", "uint16", "uint32", "uint64"):
                bits = np.array([[16, 4, 1], [255, 7, 128]], dtype)
                yield Case(
                    f"{direction} {dtype}", cls(direction), (bits, np.array([1, 2, 3], dtype))
                )
