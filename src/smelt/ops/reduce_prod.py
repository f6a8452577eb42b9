"""ReduceProd: the product along axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._reduce import Reduction, reduce_cases
from smelt.ops._shape_operands import count_elements
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Case
    from smelt.types import Dim


@dataclass(frozen=True)
class ReduceProd(Reduction):
    """The product along axes.

    Shapes: (data, axes[k]?) -> data's with the axes made 1, or removed without ``keepdims``; no
    axes mean all, or none with ``noop_with_empty_axes``.

    Dtypes: numbers; half floats are summed in single precision.

    Raises ShapeError: when the axes are not known or outside the rank.

    Source: ONNX ReduceProd-18.
    """

    name: ClassVar[str] = "reduce_prod"

    @override
    def reduce_dims(self, dims: Sequence[Dim]) -> Dim | None:
        return count_elements(tuple(dims))

    @override
    def compute(self, data: Array, axes: tuple[int, ...]) -> Array:
        return np.asarray(np.prod(data, axes, data.dtype, keepdims=True))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from reduce_cases(cls, "float16", "float64", "int32", "int64")
