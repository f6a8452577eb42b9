"""ReduceLogSum: the logarithm of the sum along axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._reduce import Reduction, reduce_cases
from smelt.ops._shape import FLOATS
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case
    from smelt.types import DType


@dataclass(frozen=True)
class ReduceLogSum(Reduction):
    """The logarithm of the sum along axes.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: floats.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceLogSum-18.
    """

    name: ClassVar[str] = "reduce_log_sum"
    dtypes: ClassVar[frozenset[DType]] = FLOATS

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.log(np.sum(data, axes, keepdims=True)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", low=1)
