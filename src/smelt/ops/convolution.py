"""Convolutions: of floats, of bytes, transposed, and with a second product added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import INTERPRETED_OPERATIONS, Array, Case, Operand
from smelt.ops._base import Composite
from smelt.ops._conformance_data import HALF_TOLERANCE, any_integers, floats, integers
from smelt.ops._quantized import check_integer_product, subtract_zero_point, wrap_to_int32
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    input_types,
    known,
    optional_type,
    require_groups,
    require_rank,
    require_shape,
    require_static,
    result_shape,
)
from smelt.ops._shape_operands import input_at, present
from smelt.ops._window import Windowed
from smelt.types import DType, TensorType, assume_at_least, assume_equal, counted, override

if TYPE_CHECKING:
    from smelt.types import Dim, Shape, ValueType


class Grouped(Windowed):
    """Convolution whose channels are divided into groups."""

    group: int = 1
    """Number of groups into which input and output channels are divided."""

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return self._tap_flop(inputs, result_shape(self, inputs))


def _plus_bias(y: Array, bias: Array | None) -> Array:
    """Add a bias, if there is one, of one number for each channel."""
    return y if bias is None else y + widen(bias).reshape(-1, *[1] * (y.ndim - 2))


class Conv(Grouped):
    """Correlation of the input with filters. Inputs are x, weights, and optionally a bias.

    Shapes: input ``[N, C, *spatial]``, weights ``[M, C / group, *kernel_shape]``, bias ``[M]``;
    result ``[N, M, *windows]``.

    Dtypes: floating-point, one for all.

    Raises ShapeError: when channels, groups, kernel or ranks do not match, or no window fits.

    Source: ONNX Conv-22.
    """

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, w = input_types(self, inputs, 2, 3, FLOATS)
        counts = self._window_counts(x)
        if w.rank != x.rank:
            raise ShapeError(f"weights of rank {w.rank} do not match an input of rank {x.rank}")
        filters, depth, *_ = w.shape
        require_shape(w, (filters, depth, *self.kernel_shape), "the weight tensor of conv")
        require_groups(self.group, filters, "filters", "axis 0 of input 1")
        if not assume_equal(x.shape[1], depth * self.group, "axis 1 of inputs 0 and 1"):
            raise ShapeError(
                f"the input has {counted(x.shape[1], 'channel')}, but the weights expect "
                f"{depth * self.group}: {depth} per group, with group={self.group}"
            )
        require_shape(optional_type(self, inputs, 2), (filters,), "the bias of conv")
        return (TensorType(x.dtype, (x.shape[0], filters, *counts)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = widen(present(inputs, 0)), widen(present(inputs, 1))
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
        return (narrow(_plus_bias(y, input_at(inputs, 2)), present(inputs, 0).dtype),)

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
        strided = cls((5, 5), (2, 2), (2, 2, 2, 2), group=33)
        yield case("depthwise_stride", strided, (2, 33, 9, 9), 33)
        yield case("depth_multiplier", cls((3, 3), group=3), (1, 3, 6, 6), 12)
        yield case("one_axis", cls((3,), (2,), (1, 1)), (2, 3, 13), 5)
        yield case("three_axes", cls((2, 3, 3), (1, 2, 1), (0, 1, 1, 1, 1, 1)), (1, 2, 4, 7, 5), 3)
        yield case("empty_batch", cls((3, 3)), (0, 3, 5, 5), 4)
        half = np.float16
        x, w = floats(1, 9, 6, 6, dtype=half), floats(7, 9, 3, 3, dtype=half, seed=1)
        arrays = (x, w, floats(7, dtype=half, seed=2))
        yield Case("float16", cls((3, 3)), arrays, HALF_TOLERANCE, frozenset({1, 2}))


class ConvInteger(Grouped):
    """Exact correlation of ``x - x_zero_point`` with the filters ``w - w_zero_point``.

    Inputs are x, weights, and optionally x_zero_point, w_zero_point and a bias (an extension of
    ONNX). Padding has the value of the zero point, so it adds nothing. Sums wrap around in int32.

    Shapes: input ``[N, C, *spatial]``, weights ``[M, C / group, *kernel_shape]``; x_zero_point is
    one number, w_zero_point one or ``[M]``; bias ``[M]``; result ``[N, M, *windows]``.

    Dtypes: int8 or uint8, each zero point like its tensor; bias and result int32.

    Raises ShapeError: when channels, groups, kernel or ranks do not match, or no window fits.

    Source: ONNX ConvInteger-10, with a bias.
    """

    is_recipe_step = True

    @property
    def real(self) -> Conv:
        """The same convolution for floating-point numbers."""
        return Conv(self.kernel_shape, self.strides, self.pads, self.dilations, self.group)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, w = input_types(self, inputs, 2, 5)
        filters = w.shape[:1]
        check_integer_product(self, inputs, ("x_zero_point", ()), ("w_zero_point", filters))
        like = [Operand(TensorType(DType.FLOAT64, kind.shape)) for kind in (x, w)]
        return (TensorType(DType.INT32, result_shape(self.real, like)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = subtract_zero_point(present(inputs, 0), input_at(inputs, 2), None)
        w = subtract_zero_point(present(inputs, 1), input_at(inputs, 3), 0)
        (total,) = self.real.reference(x, w)
        return (wrap_to_int32(_plus_bias(total, input_at(inputs, 4))),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for kind in (np.uint8, np.int8):
            yield from _cases(cls, np.dtype(kind))
        x, w = any_integers(1, 5, 6, 6), any_integers(7, 5, 3, 3, dtype="uint8", seed=1)
        zeros = integers(7, dtype=np.uint8, high=256, seed=2)
        arrays = (x, w, np.array(9, np.uint8), zeros)
        yield Case("weights_with_zero_points", cls((3, 3)), arrays, constants=frozenset({1, 2, 3}))
        yield Case("varying_weights", cls((3, 3)), (x, w.astype(np.int8)))
        yield Case("varying_zero_point", cls((3, 3)), arrays[:3], constants=frozenset({1}))


def _cases(op: type[ConvInteger], kind: np.dtype[np.uint8 | np.int8]) -> Iterator[Case]:
    """Yield the cases of one dtype."""

    def case(
        name: str, op: ConvInteger, x: tuple[int, ...], filters: int, *, bias: bool = True
    ) -> Case:
        weights = any_integers(filters, x[1] // op.group, *op.kernel_shape, dtype="int8", seed=1)
        offsets = integers(filters, low=-9999, high=9999, seed=2) if bias else None
        zero = np.array(113 if kind == np.uint8 else -17, kind)
        arrays = (any_integers(*x, dtype=kind.name), weights, zero, None, offsets)
        return Case(f"{name}_{kind.name}", op, arrays, constants=frozenset(range(1, 5)))

    same = (1, 1, 1, 1)
    yield case("1x1", op((1, 1)), (1, 3, 5, 7), 17)
    yield case("1x1_deep", op((1, 1)), (1, 64, 7, 7), 33)
    yield case("1x1_stride", op((1, 1), (2, 2)), (2, 34, 7, 9), 5)
    yield case("3x3_same", op((3, 3), pads=same), (1, 18, 9, 11), 33)
    yield case("3x3_no_bias", op((3, 3)), (1, 3, 5, 5), 1, bias=False)
    yield case("7x7_stride", op((7, 7), (2, 2), (3, 3, 3, 3)), (1, 3, 31, 29), 16)
    yield case("asymmetric_pads", op((3, 2), (2, 1), (0, 1, 2, 0)), (2, 4, 8, 7), 6)
    yield case("dilated", op((3, 3), (1, 1), (2, 2, 2, 2), (2, 2)), (1, 8, 9, 9), 8)
    yield case("two_groups", op((3, 3), pads=same, group=2), (1, 6, 7, 7), 34)
    yield case("depthwise", op((3, 3), (1, 1), same, group=17), (1, 17, 8, 9), 17)
    yield case("depthwise_point", op((1, 1), group=70), (1, 70, 5, 7), 70)
    yield case("depthwise_wide", op((3, 3), (1, 1), same, group=96), (1, 96, 9, 8), 96)
    yield case("depthwise_stride", op((5, 5), (2, 2), (2, 2, 2, 2), group=33), (2, 33, 9, 9), 33)
    yield case("depthwise_3_2", op((3, 3), (2, 2), same, group=70), (1, 70, 11, 10), 70)
    yield case("one_axis", op((3,), (2,), (1, 1)), (2, 3, 13), 5)
    yield case("three_axes", op((2, 2, 2)), (1, 2, 4, 5, 3), 3)
    yield case("empty_batch", op((3, 3)), (0, 3, 5, 5), 4)


_OWN_INPUTS = 2
"""Inputs of each convolution: image and weights."""


class ConvSum(Composite):
    """The sum of two convolutions, computed as one longer sum for each element.

    Inputs are image and weights of the first, image and weights of the second, and optionally a
    bias. It is the end of a residual block whose shortcut is a projection.

    Shapes: those of both convolutions, whose results have the same shape.

    Dtypes: the convolutions'.

    Raises ShapeError: when the inputs of a convolution do not fit, or the shapes of the results
    differ.

    Source: design, "Fused ops".
    """

    first: Conv
    """Convolution of the first image and weights, to which the bias is added."""
    second: Conv
    """Convolution of the second image and weights."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        input_types(self, inputs, 2 * _OWN_INPUTS, 2 * _OWN_INPUTS + 1)
        bias = inputs[2 * _OWN_INPUTS :]
        one = self.first.infer([*inputs[:_OWN_INPUTS], *bias])
        other = self.second.infer(inputs[_OWN_INPUTS : 2 * _OWN_INPUTS])
        if one != other:
            raise ShapeError(
                f"the convolutions give {one[0]} and {other[0]}, which cannot be added"
            )
        return one

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        second = self.second.count_flop(inputs[_OWN_INPUTS : 2 * _OWN_INPUTS])
        return self.first.count_flop(inputs[:_OWN_INPUTS]) + second

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        bias = input_at(inputs, 2 * _OWN_INPUTS)
        (one,) = self.first.reference(*inputs[:_OWN_INPUTS], bias)
        (other,) = self.second.reference(*inputs[_OWN_INPUTS : 2 * _OWN_INPUTS])
        return (narrow(widen(one) + widen(other), present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(
            name: str, op: ConvSum, channels: tuple[int, int], size: int, filters: int
        ) -> Case:
            (step, _), reach = op.second.strides, op.first.kernel_shape[0]
            arrays = (
                floats(2, channels[0], size, size + 1),
                floats(filters, channels[0], reach, reach, seed=1),
                floats(2, channels[1], step * size, step * (size + 1), seed=2),
                floats(filters, channels[1], 1, 1, seed=3),
                floats(filters, seed=4),
            )
            return Case(name, op, arrays, constants=frozenset({1, 3, 4}))

        plain, halved = Conv((1, 1)), Conv((1, 1), (2, 2))
        yield case("projection", cls(plain, plain), (64, 128), 3, 40)
        yield case("halved", cls(plain, halved), (128, 64), 4, 33)
        yield case("window", cls(Conv((3, 3), pads=(1, 1, 1, 1)), halved), (64, 64), 4, 20)
        yield case("odd_channels", cls(plain, halved), (7, 13), 4, 9)


class ConvTranspose(Grouped):
    """Transposed convolution: each input element adds its filters to a window of the output.

    Inputs are x, weights, and optionally a bias.

    Shapes: input ``[N, C, *spatial]``, weights ``[C, M / group, *kernel_shape]``, bias ``[M]``; an
    output extent is ``stride * (input - 1) + output_padding + (kernel - 1) * dilation + 1 - pads``.

    Dtypes: floating-point, one for all.

    Raises ShapeError: when channels, groups, kernel or ranks do not match, or the output is empty.

    Source: ONNX ConvTranspose-22; importers convert output_shape and auto_pad to pads.
    """

    output_padding: tuple[int, ...] = ()
    """Number of elements that are added at the end of each spatial axis of the output."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        extra = self._numbers("output_padding", 0, len(self.kernel_shape))
        object.__setattr__(self, "output_padding", extra)

    def _extents(self, spatial: Shape) -> Shape:
        """Return the spatial extents of the output. Raises ShapeError when one is not positive."""
        extents: list[Dim] = []
        for axis, extent in enumerate(spatial):
            reach = (self.kernel_shape[axis] - 1) * self.dilations[axis] + 1
            constant = reach + self.output_padding[axis] - sum(self.pad_pairs[axis])
            if not assume_at_least(extent, 1, f"axis {axis + 2} of input 0"):
                raise ShapeError(f"axis {axis + 2} of the input has no elements")
            result = (extent - 1) * self.strides[axis] + constant
            if not assume_at_least(result, 1, f"axis {axis + 2} of the result"):
                raise ShapeError(
                    f"axis {axis + 2} of the output has {counted(result, 'element')} with pads "
                    f"{self.pads}; it must have at least 1"
                )
            extents.append(result)
        return tuple(extents)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, w = input_types(self, inputs, 2, 3, FLOATS)
        require_rank(x, "the input of conv_transpose", len(self.kernel_shape) + 2)
        require_rank(w, "the weight tensor of conv_transpose", x.rank)
        channels, depth, *_ = w.shape
        require_shape(
            w, (channels, depth, *self.kernel_shape), "the weight tensor of conv_transpose"
        )
        if not assume_equal(x.shape[1], channels, "axis 1 of input 0 and axis 0 of input 1"):
            has = counted(x.shape[1], "channel")
            raise ShapeError(f"the input has {has}, but the weights expect {channels}")
        shared = known(x.shape[1], channels)
        require_groups(self.group, shared, "channels", "axis 1 of input 0")
        filters = depth * self.group
        require_shape(optional_type(self, inputs, 2), (filters,), "the bias of conv_transpose")
        return (TensorType(x.dtype, (x.shape[0], filters, *self._extents(x.shape[2:]))),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        return self._tap_flop(inputs, input_type(self, inputs, 0).shape)

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        trips = prod(self.kernel_shape) * INTERPRETED_OPERATIONS
        return super().count_work(inputs, results) + trips

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, w = widen(present(inputs, 0)), widen(present(inputs, 1))
        batch, channels, *spatial = x.shape
        groups, filters = self.group, w.shape[1] * self.group
        grouped = np.moveaxis(x.reshape(batch, groups, channels // groups, prod(spatial)), 1, 0)
        weights = w.reshape(groups, channels // groups, w.shape[1], prod(self.kernel_shape))
        extents = require_static(self._extents(x.shape[2:]), "the extents")
        reach = [a + sum(p) for a, p in zip(extents, self.pad_pairs, strict=True)]
        full = np.zeros((batch, filters, *reach), x.dtype)
        for number, tap in enumerate(product(*map(range, self.kernel_shape))):
            taps = weights[..., number].transpose(0, 2, 1)[:, None]
            part = np.moveaxis(np.matmul(taps, grouped), 0, 1).reshape(batch, filters, *spatial)
            where = tuple(
                slice(k * d, k * d + n * s, s)
                for k, d, s, n in zip(tap, self.dilations, self.strides, spatial, strict=True)
            )
            full[(slice(None), slice(None), *where)] += part
        kept = tuple(slice(p[0], p[0] + e) for p, e in zip(self.pad_pairs, extents, strict=True))
        y = full[(slice(None), slice(None), *kept)]
        return (narrow(_plus_bias(y, input_at(inputs, 2)), present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: ConvTranspose, x: tuple[int, ...], filters: int, seed: int) -> Case:
            weights = floats(x[1], filters // op.group, *op.kernel_shape, seed=seed)
            offsets = floats(filters, seed=seed + 1) if seed % 2 else None
            return Case(name, op, (floats(*x), weights, offsets), constants=frozenset({1, 2}))

        yield case("2x2_stride", cls((2, 2), (2, 2)), (1, 3, 5, 7), 17, 1)
        yield case("4x4_bilinear", cls((4, 4), (2, 2), (1, 1, 1, 1)), (2, 17, 4, 3), 3, 2)
        yield case("3x3_unit_stride", cls((3, 3), (1, 1), (1, 0, 0, 1)), (1, 33, 5, 5), 4, 3)
        grown = cls((3, 3), (2, 3), (1, 1, 1, 1), output_padding=(1, 2))
        yield case("output_padding", grown, (1, 5, 4, 6), 6, 5)
        yield case("dilated", cls((3, 2), (2, 1), (0, 1, 1, 0), (2, 3)), (1, 4, 5, 4), 4, 4)
        yield case("two_groups", cls((3, 3), (2, 2), group=2), (1, 6, 4, 5), 10, 7)
        yield case("depthwise", cls((4, 4), (2, 2), (1, 1, 1, 1), group=9), (1, 9, 5, 5), 9, 6)
        yield case("one_axis", cls((3,), (2,), (1, 0)), (2, 3, 7), 5, 9)
        yield case("three_axes", cls((2, 2, 3), (2, 1, 2)), (1, 2, 3, 4, 3), 3, 8)
        half = np.float16
        arrays = (floats(1, 9, 4, 4, dtype=half), floats(9, 5, 3, 3, dtype=half, seed=1))
        yield Case("float16", cls((3, 3)), arrays, HALF_TOLERANCE, frozenset({1}))
