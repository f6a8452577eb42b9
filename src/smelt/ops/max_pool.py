"""MaxPool: the largest element of each window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Operand
from smelt.ops._conformance_data import floats, integers
from smelt.ops._reference_numerics import lowest
from smelt.ops._shape import FLOATS, input_type, require_dtype, require_inputs
from smelt.ops._shape_operands import present
from smelt.ops._window import Windowed
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class MaxPool(Windowed):
    """The largest element of each window; padding is never the largest.

    With ``ceil_mode`` a shorter last window is kept unless it would start after the elements and
    the padding before them, as in Caffe.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, *windows]``.

    Dtypes: floating-point, int8, uint8; the result's is the input's.

    Raises ShapeError: when the rank does not match the kernel or no window fits.

    Source: ONNX MaxPool-22, first result.
    """

    name: ClassVar[str] = "max_pool"

    ceil_mode: bool = False
    """Whether the number of windows is rounded up."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS | {DType.INT8, DType.UINT8}, "the input of max_pool")
        counts = self._window_counts(x, ceil_mode=self.ceil_mode)
        return (TensorType(x.dtype, (*x.shape[:2], *counts)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        counts = self._counts_on(x, ceil_mode=self.ceil_mode)
        view = self._windows(x, counts, lowest(x.dtype))
        return (np.asarray(view.max(axis=tuple(range(-len(counts), 0)))),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("2x2", cls((2, 2), (2, 2)), (floats(1, 3, 6, 8),))
        yield Case("3x3_stride_pads", cls((3, 3), (2, 2), (1, 1, 1, 1)), (floats(2, 17, 13, 11),))
        yield Case("negative", cls((3, 3), (1, 1), (1, 1, 1, 1)), (floats(1, 33, 5, 5, high=-0.5),))
        op = cls((3, 3), (2, 2), ceil_mode=True)
        yield Case("ceil", op, (floats(1, 3, 12, 14),))
        op = cls((2, 2), (2, 2), (1, 1, 1, 1), ceil_mode=True)
        yield Case("ceil_drops_window_in_padding", op, (floats(1, 3, 5, 6),))
        yield Case("asymmetric_pads", cls((3, 2), (1, 2), (0, 1, 2, 0)), (floats(1, 4, 7, 7),))
        yield Case("dilated", cls((2, 3), (1, 1), (), (3, 2)), (floats(1, 4, 8, 9),))
        yield Case("one_axis", cls((3,), (2,)), (floats(2, 3, 11),))
        yield Case("three_axes", cls((2, 2, 2), (1, 2, 1)), (floats(1, 2, 4, 6, 3),))
        op = cls((1, 5), pads=(0, 2, 0, 2))
        yield Case("narrower_than_padding", op, (floats(1, 17, 9, 1),))
        yield Case("empty_batch", cls((2, 2)), (floats(0, 3, 4, 4),))
        yield Case("float16", cls((3, 3)), (floats(1, 9, 6, 6, dtype=np.float16),))
        yield Case("uint8", cls((2, 2), (2, 2)), (integers(1, 3, 6, 6, dtype=np.uint8, high=256),))
