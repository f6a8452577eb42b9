"""Or: whether any of both inputs is true, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._broadcast import Broadcast, broadcast_cases
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case


@dataclass(frozen=True)
class Or(Broadcast):
    """Whether any of both inputs is true, element by element.

    Shapes: the inputs broadcast onto the result.

    Dtypes: bool.

    Raises ShapeError: when the inputs do not broadcast or their element types differ.

    Source: ONNX Or-7.
    """

    name: ClassVar[str] = "or"
    dtypes: ClassVar[frozenset[DType]] = frozenset({DType.BOOL})

    @override
    def compute(self, left: Array, right: Array) -> Array:
        return np.logical_or(left, right)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from broadcast_cases(cls(), "bool")
