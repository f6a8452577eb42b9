"""ReduceMean: the mean along axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._reduce import Reduction, reduce_cases
from smelt.ops._reference_numerics import divide_towards_zero
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case


@dataclass(frozen=True)
class ReduceMean(Reduction):
    """The mean along axes.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; half floats are summed in single precision, integers divided towards zero, of
    which the mean of none is zero.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceMean-18.
    """

    name: ClassVar[str] = "reduce_mean"

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        count = int(np.prod([data.shape[a] for a in axes], dtype=np.int64))
        total = np.sum(data, axes, data.dtype, keepdims=True)
        if data.dtype.kind == "f":
            return np.asarray(total / np.asarray(count, data.dtype))
        wide = np.int64 if data.dtype.kind == "i" else np.uint64
        return divide_towards_zero(total.astype(wide), np.asarray(count, wide))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64", empty=False)
