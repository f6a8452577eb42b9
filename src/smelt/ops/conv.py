"""Conv: convolution with any number of spatial axes, optionally in groups."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Operand
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    optional_type,
    require_dtype,
    require_inputs,
    require_same_dtype,
    require_shape,
    result_shape,
)
from smelt.ops._shape_operands import optional_array, present
from smelt.ops._window import Windowed
from smelt.types import TensorType, assume_divides, assume_equal, counted, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Conv(Windowed):
    """Correlation of the input with filters. Inputs are x, weights, and optionally a bias.

    Shapes: input ``[N, C, *spatial]``, weights ``[M, C / group, *kernel_shape]``, bias ``[M]``;
    result ``[N, M, *windows]``.

    Dtypes: floating-point, one for all.

    Raises ShapeError: when channels, groups, kernel or ranks do not match, or no window fits.

    Source: ONNX Conv-22.
    """

    name: ClassVar[str] = "conv"

    group: int = 1
    """Number of groups into which input and output channels are divided."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 3)
        x, w = input_type(self, inputs, 0), input_type(self, inputs, 1)
        bias = optional_type(self, inputs, 2)
        require_dtype(x, FLOATS, "the input of conv")
        require_same_dtype(x, w, bias)
        counts = self._window_counts(x)
        if w.rank != x.rank:
            raise ShapeError(f"weights of rank {w.rank} do not match an input of rank {x.rank}")
        filters, depth, *_ = w.shape
        require_shape(w, (filters, depth, *self.kernel_shape), "the weight tensor of conv")
        if self.group < 1 or not assume_divides(
            self.group, filters, "axis 0 of input 1 and the groups"
        ):
            raise ShapeError(f"{filters} filters are not divisible by {self.group} groups")
        if not assume_equal(x.shape[1], depth * self.group, "axis 1 of inputs 0 and 1"):
            raise ShapeError(
                f"the input has {counted(x.shape[1], 'channel')}, the weights have {depth} for "
                f"each of {self.group} groups"
            )
        require_shape(bias, (filters,), "the bias of conv")
        return (TensorType(x.dtype, (x.shape[0], filters, *counts)),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return self._tap_flop(inputs, result_shape(self, inputs))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = widen(present(inputs, 0)), widen(present(inputs, 1))
        bias = optional_array(inputs, 2)
        batch, groups, filters = x.shape[0], self.group, w.shape[0]
        counts = self._counts_on(x)
        view = self._windows(x, counts, 0)
        view = view.reshape(batch, groups, x.shape[1] // groups, *view.shape[2:])
        weights = w.reshape(groups, filters // groups, prod(w.shape[1:])).transpose(0, 2, 1)
        # To [groups, batch, *windows, channels, *kernel]: each group becomes one matrix product.
        spatial = len(counts)
        window_axes = range(3, 3 + spatial)
        kernel = range(3 + spatial, 3 + 2 * spatial)
        columns = view.transpose(1, 0, *window_axes, 2, *kernel)
        columns = columns.reshape(groups, batch * prod(counts), weights.shape[1])
        y = np.matmul(columns, weights).reshape(groups, batch, *counts, filters // groups)
        y = y.transpose(1, 0, 2 + spatial, *range(2, 2 + spatial)).reshape(batch, filters, *counts)
        if bias is not None:
            y = y + widen(bias).reshape(-1, *[1] * spatial)
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(
            name: str, op: Conv, x: tuple[int, ...], filters: int, *, bias: bool = True
        ) -> Case:
            weights = floats(filters, x[1] // op.group, *op.kernel_shape, seed=1)
            offsets = floats(filters, seed=2) if bias else None
            return Case(name, op, (floats(*x), weights, offsets), constants=frozenset({1, 2}))

        yield case("1x1", cls((1, 1)), (1, 3, 5, 7), 17)
        yield case("1x1_stride", cls((1, 1), (2, 2)), (2, 33, 7, 9), 5)
        yield case("3x3_same", cls((3, 3), pads=(1, 1, 1, 1)), (1, 17, 9, 11), 33)
        yield case("3x3_no_bias", cls((3, 3)), (1, 3, 5, 5), 1, bias=False)
        yield case("7x7_stride", cls((7, 7), (2, 2), (3, 3, 3, 3)), (1, 3, 31, 29), 16)
        yield case("asymmetric_pads", cls((3, 2), (2, 1), (0, 1, 2, 0)), (2, 4, 8, 7), 6)
        yield case("dilated", cls((3, 3), (1, 1), (2, 2, 2, 2), (2, 2)), (1, 8, 9, 9), 8)
        yield case("dilated_unevenly", cls((3, 2), (1, 2), (0, 3, 1, 0), (2, 3)), (1, 5, 9, 8), 3)
        yield case("kernel_is_image", cls((5, 4)), (3, 16, 5, 4), 10)
        yield case("two_groups", cls((3, 3), pads=(1, 1, 1, 1), group=2), (1, 6, 7, 7), 34)
        yield case("depthwise", cls((3, 3), (1, 1), (1, 1, 1, 1), group=17), (1, 17, 8, 9), 17)
        yield case(
            "depthwise_stride", cls((5, 5), (2, 2), (2, 2, 2, 2), group=33), (2, 33, 9, 9), 33
        )
        yield case("depth_multiplier", cls((3, 3), group=3), (1, 3, 6, 6), 12)
        yield case("one_axis", cls((3,), (2,), (1, 1)), (2, 3, 13), 5)
        yield case("three_axes", cls((2, 3, 3), (1, 2, 1), (0, 1, 1, 1, 1, 1)), (1, 2, 4, 7, 5), 3)
        yield case("empty_batch", cls((3, 3)), (0, 3, 5, 5), 4)
        half = np.float16
        arrays = (
            floats(1, 9, 6, 6, dtype=half),
            floats(7, 9, 3, 3, dtype=half, seed=1),
            floats(7, dtype=half, seed=2),
        )
        yield Case("float16", cls((3, 3)), arrays, HALF_TOLERANCE, frozenset({1, 2}))
