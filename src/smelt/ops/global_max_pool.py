"""GlobalMaxPool: the largest element of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._global_pool import GlobalPool
from smelt.ops._reference_numerics import lowest
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class GlobalMaxPool(GlobalPool):
    """The largest element over all spatial axes.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, 1, ...]``.

    Dtypes: floating-point, int8, uint8; the result's is the input's.

    Raises ShapeError: when there is not one input of such a type and of rank 2 or more, or its
    channels have no elements.

    Source: ONNX GlobalMaxPool-22; integer inputs are an extension.
    """

    name: ClassVar[str] = "global_max_pool"

    @override
    def _result_dtype(self, dtype: DType, /) -> DType:
        return dtype

    @override
    def _pool(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return np.asarray(x.max(axis=axes, keepdims=True, initial=lowest(x.dtype)))
