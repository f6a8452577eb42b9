"""Softmax: exponentials normalised to sum 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._softmax_like import SoftmaxLike
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class Softmax(SoftmaxLike):
    """``exp(x) / sum(exp(x))`` along an axis, computed without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range.

    Source: ONNX Softmax-13.
    """

    name: ClassVar[str] = "softmax"

    @override
    def _normalize_rows(self, shifted: Array, /) -> Array:
        powers = np.exp(shifted)
        return np.asarray(powers / powers.sum(axis=self.axis, keepdims=True))
