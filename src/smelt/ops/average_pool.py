"""AveragePool: the mean of each window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ir import Case, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats, integers
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import FLOATS, SHORT_INTEGERS, input_type, require_dtype, require_inputs
from smelt.ops._shape_operands import present
from smelt.ops._window import Windowed
from smelt.types import DType, TensorType, is_float_dtype, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class AveragePool(Windowed):
    """The sum of each window, divided by the number of its elements.

    The number includes elements inside the input or, with ``count_include_pad``, inside the padded
    input. The part of a last window that ``ceil_mode`` extends beyond the padding is never
    included. Caffe's average is ``ceil_mode`` with ``count_include_pad``.

    Shapes: ``[N, C, *spatial]`` gives ``[N, C, *windows]``.

    Dtypes: floating-point, and the result's is the input's; or int8 and uint8, whose mean is
    float32.

    Raises ShapeError: when the rank does not match the kernel or no window fits.

    Source: ONNX AveragePool-22; integer inputs are an extension.
    """

    name: ClassVar[str] = "average_pool"

    ceil_mode: bool = False
    """Whether the number of windows is rounded up."""
    count_include_pad: bool = False
    """Whether the divisor includes padding."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1)
        x = input_type(self, inputs, 0)
        require_dtype(x, FLOATS | SHORT_INTEGERS, "the input of average_pool")
        counts = self._window_counts(x, ceil_mode=self.ceil_mode)
        dtype = x.dtype if x.dtype.is_float else DType.FLOAT32
        return (TensorType(dtype, (*x.shape[:2], *counts)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        x = widen(array) if is_float_dtype(array.dtype) else array.astype(np.float64)
        counts = self._counts_on(x, ceil_mode=self.ceil_mode)
        total = self._windows(x, counts, 0).sum(axis=tuple(range(-len(counts), 0)))
        sizes = self._window_sizes(x, counts, padded=self.count_include_pad)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total / sizes.astype(x.dtype)
        return (narrow(mean, array.dtype if is_float_dtype(array.dtype) else np.dtype(np.float32)),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("2x2", cls((2, 2), (2, 2)), (floats(1, 3, 6, 8),))
        op = cls((1, 5), pads=(0, 2, 0, 2))
        yield Case("narrower_than_padding", op, (floats(1, 17, 9, 1),))
        pads = (1, 1, 1, 1)
        yield Case("exclude_pad", cls((3, 3), (2, 2), pads), (floats(2, 17, 7, 9),))
        op = cls((3, 3), (2, 2), pads, count_include_pad=True)
        yield Case("include_pad", op, (floats(2, 33, 7, 9),))
        op = cls((3, 3), (2, 2), ceil_mode=True)
        yield Case("ceil", op, (floats(1, 3, 8, 10),))
        op = cls((3, 3), (2, 2), pads, ceil_mode=True, count_include_pad=True)
        yield Case("ceil_include_pad", op, (floats(1, 3, 8, 10),))
        op = cls((3, 2), (3, 2), (1, 0, 1, 1), ceil_mode=True, count_include_pad=True)
        yield Case("ceil_drops_window_in_padding", op, (floats(1, 3, 6, 7),))
        yield Case("asymmetric_pads", cls((3, 2), (1, 2), (0, 1, 2, 0)), (floats(1, 4, 7, 7),))
        op = cls((2, 3), (1, 1), pads, (3, 2))
        yield Case("dilated", op, (floats(1, 4, 8, 9),))
        yield Case("one_axis", cls((3,), (2,)), (floats(2, 3, 11),))
        yield Case("three_axes", cls((2, 2, 2), (1, 2, 1)), (floats(1, 2, 4, 6, 3),))
        yield Case("empty_batch", cls((2, 2)), (floats(0, 3, 4, 4),))
        x = floats(1, 9, 6, 6, dtype=np.float16)
        yield Case("float16", cls((3, 3)), (x,), HALF_TOLERANCE)
        for kind in (np.int8, np.uint8):
            x = integers(1, 70, 6, 7, dtype=kind, low=np.iinfo(kind).min, high=127)
            op = cls((3, 3), (2, 2), pads)
            yield Case(np.dtype(kind).name, op, (x,))
