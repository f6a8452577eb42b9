"""GlobalAveragePool: the mean of each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._global_pool import GlobalPool
from smelt.ops._reference_numerics import mean
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.ir import Array


@dataclass(frozen=True)
class GlobalAveragePool(GlobalPool):
    """The mean over all spatial axes.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, 1, ...]``.

    Dtypes: floating-point, and the result's is the input's; or int8 and uint8, whose mean is
    float32.

    Raises ShapeError: when there is not one input of such a type and of rank 2 or more, or its
    channels have no elements.

    Source: ONNX GlobalAveragePool-22; integer inputs are an extension.
    """

    name: ClassVar[str] = "global_average_pool"

    @override
    def _result_dtype(self, dtype: DType, /) -> DType:
        return dtype if dtype.is_float else DType.FLOAT32

    @override
    def _pool(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return mean(x if x.dtype.kind == "f" else x.astype(np.float64), axes)
