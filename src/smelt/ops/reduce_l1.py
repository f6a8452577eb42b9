"""ReduceL1: the sum of magnitudes along axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._reduce import Reduction, reduce_cases
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case


@dataclass(frozen=True)
class ReduceL1(Reduction):
    """The sum of magnitudes along axes.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; half floats are summed in single precision.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceL1-18.
    """

    name: ClassVar[str] = "reduce_l1"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.sum(np.abs(data), axes, data.dtype, keepdims=True)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")
