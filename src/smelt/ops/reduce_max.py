"""ReduceMax: the largest element along axes; NaN where one is NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case
from smelt.ops._reduce import Reduction, reduce_cases
from smelt.ops._reference_numerics import lowest
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array


@dataclass(frozen=True)
class ReduceMax(Reduction):
    """The largest element along axes; NaN where one is NaN.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: any; of nothing it is the type's smallest value.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceMax-20.
    """

    name: ClassVar[str] = "reduce_max"
    dtypes: ClassVar[frozenset[DType]] = frozenset(DType)

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.max(data, axis=axes, keepdims=True, initial=lowest(data.dtype)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(
            cls, "float16", "float64", "int32", "int64", "int8", "uint8", "bool"
        )
        special = np.array([[np.nan, 1.0, np.inf], [-np.inf, 0.0, 2.0]], np.float32)
        yield Case("not a number", cls(), (special, np.array([1])), constants=frozenset({1}))
