"""ReduceL2: the root of the sum of squares along axes."""

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
class ReduceL2(Reduction):
    """The root of the sum of squares along axes.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; half floats are summed in single precision.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceL2-18.
    """

    name: ClassVar[str] = "reduce_l2"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        wide = data.astype(np.float64) if data.dtype.kind in "iu" else data
        return np.asarray(np.sqrt(np.sum(wide * wide, axes, keepdims=True)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")
