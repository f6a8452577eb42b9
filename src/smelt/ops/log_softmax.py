"""LogSoftmax: the logarithm of softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._softmax_like import SoftmaxLike
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class LogSoftmax(SoftmaxLike):
    """``x - log(sum(exp(x)))`` along an axis, computed without overflow.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range.

    Source: ONNX LogSoftmax-13.
    """

    name: ClassVar[str] = "log_softmax"

    @override
    def _normalize_rows(self, shifted: Array, /) -> Array:
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True)))
