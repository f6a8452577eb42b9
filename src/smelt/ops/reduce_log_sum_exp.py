"""ReduceLogSumExp: the logarithm of the sum of exponentials along axes, without overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._reduce import Reduction, reduce_cases
from smelt.ops._shape import FLOATS
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array
    from smelt.types import DType


@dataclass(frozen=True)
class ReduceLogSumExp(Reduction):
    """The logarithm of the sum of exponentials along axes, without overflow.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: floats.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceLogSumExp-18.
    """

    name: ClassVar[str] = "reduce_log_sum_exp"
    dtypes: ClassVar[frozenset[DType]] = FLOATS

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        peak = np.max(data, axis=axes, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(peak), peak, 0).astype(data.dtype)
        return np.asarray(np.log(np.sum(np.exp(data - shift), axes, keepdims=True)) + shift)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64")
        large = np.array([[1000.0, 999.0], [-1000.0, -1001.0]], np.float32)
        yield Case("large numbers", cls(), (large, np.array([1])), constants=frozenset({1}))
