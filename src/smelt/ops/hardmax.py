"""Hardmax: 1 at the first largest element of each row, 0 elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._softmax_like import SoftmaxLike
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Hardmax(SoftmaxLike):
    """1 at the first largest element along an axis, 0 elsewhere.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range.

    Source: ONNX Hardmax-13.
    """

    name: ClassVar[str] = "hardmax"

    @override
    def _normalize_rows(self, shifted: Array, /) -> Array:
        first = np.expand_dims(shifted.argmax(axis=self.axis), self.axis)
        y = np.zeros_like(shifted)
        np.put_along_axis(y, first, 1, axis=self.axis)
        return y
