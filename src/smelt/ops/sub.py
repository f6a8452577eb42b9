"""Sub: the difference of two tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case
    from smelt.types import Dim


@dataclass(frozen=True)
class Sub(Broadcast):
    """The difference of two tensors.

    Shapes: the inputs broadcast onto the result.

    Dtypes: any number; integers wrap around.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Sub-14.
    """

    name: ClassVar[str] = "sub"

    @override
    def combine_dims(self, left: Dim, right: Dim) -> Dim | None:
        return left - right

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.subtract(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(
            cls(), "float32", "float16", "float64", "int32", "int64", "uint8"
        )
