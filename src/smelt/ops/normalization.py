"""Normalisation of channels, groups and rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import INTERPRETED_OPERATIONS, TEMPORARY_OPERATIONS, Array, Case, Op, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import mean, narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    input_types,
    known,
    normalize_axis,
    optional_type,
    require_broadcast,
    require_choice,
    require_dtype,
    require_groups,
    require_rank,
    require_shape,
)
from smelt.ops._shape_operands import input_at, present
from smelt.types import Dim, Limit, TensorType, ValueType, element_count, override


class BatchNormalization(BuiltinOp):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` for each channel.

    Inputs are x, scale, bias, mean and variance.

    Shapes: x ``[N, C, *spatial]``, the others ``[C]``; the result's is x's.

    Dtypes: floating-point; the result's is x's.

    Raises ShapeError: when the numbers of channels differ.

    Source: ONNX BatchNormalization-15, in inference mode.
    """

    epsilon: float = 1e-5
    """Number that is added to the variance."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, *others = input_types(self, inputs, 5)
        require_rank(x, "the input of batch_normalization", 2, 99)
        channels = x.shape[1]
        for kind, what in zip(others, ("scale", "bias", "mean", "variance"), strict=True):
            require_dtype(kind, FLOATS, f"the {what} of batch_normalization")
            require_shape(kind, (channels,), f"the {what} of batch_normalization")
            channels = known(channels, kind.shape[0])
        require_dtype(x, FLOATS, "the input of batch_normalization")
        return (TensorType(x.dtype, (x.shape[0], channels, *x.shape[2:])),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = present(inputs, 0)
        shape = (-1, *[1] * (x.ndim - 2))
        rows = (widen(present(inputs, index)).reshape(shape) for index in range(1, 5))
        scale, bias, mean, variance = rows
        # As a factor and a term: where the variance is 0 without epsilon, the term is not a number.
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = scale / np.sqrt(variance + variance.dtype.type(self.epsilon))
            return (narrow(widen(x) * factor + (bias - mean * factor), x.dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: BatchNormalization, *shape: int, half: bool = False) -> Case:
            kind = np.float16 if half else np.float32
            channels = shape[1]
            rows = [floats(channels, dtype=kind, seed=seed) for seed in (1, 2, 3)]
            rows.append(floats(channels, dtype=kind, low=0.1, high=2.0, seed=4))
            tolerance = HALF_TOLERANCE if half else 1e-4
            arrays = (floats(*shape, dtype=kind), *rows)
            return Case(name, op, arrays, tolerance, frozenset(range(1, 5)))

        yield case("image", cls(), 2, 17, 5, 7)
        yield case("one_channel", cls(), 1, 1, 3, 3)
        yield case("large_epsilon", cls(epsilon=0.1), 1, 33, 4, 5)
        yield case("matrix", cls(), 5, 9)
        yield case("volume", cls(), 1, 3, 2, 3, 4)
        yield case("empty_batch", cls(), 0, 3, 4, 4)
        yield case("float16", cls(), 1, 9, 5, 5, half=True)


class ChannelNormalization(BuiltinOp):
    """Normalisation over the spatial axes, with a scale and a bias for each channel."""

    minimum_rank: ClassVar[int] = 2
    """Smallest rank of the input."""

    @abstractmethod
    def _standardize(self, x: Array, /) -> Array:
        """Return ``x``, which has elements, with mean 0 and variance 1."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, scale, bias = input_types(self, inputs, 3, dtypes=FLOATS)
        require_rank(x, f"the input of {self.name}", self.minimum_rank, 99)
        require_shape(scale, (x.shape[1],), f"the scale of {self.name}")
        require_shape(bias, (x.shape[1],), f"the bias of {self.name}")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale, bias = (widen(present(inputs, index)) for index in range(3))
        if not x.size:
            return (present(inputs, 0),)
        shape = (-1, *[1] * (x.ndim - 2))
        y = self._standardize(x) * scale.reshape(shape) + bias.reshape(shape)
        return (narrow(y, present(inputs, 0).dtype),)


class InstanceNormalization(ChannelNormalization):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Mean and variance are computed over the spatial axes. Inputs are x, scale and bias.

    Shapes: x ``[N, C, *spatial]``, scale and bias ``[C]``; the result's is x's.

    Dtypes: floating-point, one for all; statistics are computed at least in float32.

    Raises ShapeError: when the numbers of channels do not match.

    Source: ONNX InstanceNormalization-22.
    """

    minimum_rank: ClassVar[int] = 3

    epsilon: float = 1e-5
    """Number that is added to the variance."""

    @override
    def _standardize(self, x: Array, /) -> Array:
        return _standardized(x, tuple(range(2, x.ndim)), self.epsilon)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield _channel_case("image", cls(), 2, 17, 5, 7)
        yield _channel_case("one_channel", cls(), 1, 1, 9, 9)
        yield _channel_case("large_epsilon", cls(epsilon=0.1), 1, 33, 4, 3)
        yield _channel_case("series", cls(), 2, 3, 11)
        yield _channel_case("float16", cls(), 1, 8, 5, 5, half=True)


class GroupNormalization(ChannelNormalization):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Mean and variance are computed over a group of channels and the spatial axes. Inputs are x,
    scale and bias.

    Shapes: x ``[N, C, *spatial]``, scale and bias ``[C]``; the result's is x's.

    Dtypes: floating-point, one for all; statistics are computed at least in float32.

    Raises ShapeError: when the numbers of channels do not match, or the groups do not divide them.

    Source: ONNX GroupNormalization-21.
    """

    num_groups: int
    """Number of groups into which the channels are divided."""
    epsilon: float = 1e-5
    """Number that is added to the variance."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        result = super().infer(inputs)
        x, scale, _ = input_types(self, inputs, 3)
        channels = known(x.shape[1], scale.shape[0])
        require_groups(self.num_groups, channels, "channels", "axis 1 of input 0")
        return result

    @override
    def _standardize(self, x: Array, /) -> Array:
        rows = x.reshape(x.shape[0], self.num_groups, prod(x.shape[1:]) // self.num_groups)
        return _standardized(rows, (2,), self.epsilon).reshape(x.shape)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield _channel_case("image", cls(3), 2, 9, 5, 7)
        yield _channel_case("one_group", cls(1), 1, 17, 3, 4)
        yield _channel_case("group_a_channel", cls(33, epsilon=1e-2), 1, 33, 4, 3)
        yield _channel_case("series", cls(2), 2, 4, 11)
        yield _channel_case("float16", cls(4), 1, 8, 5, 5, half=True)


class RowNormalization(BuiltinOp):
    """Normalisation over the axes from ``axis`` on, with a scale and optionally a bias."""

    maximum_inputs: ClassVar[int]
    """Number of inputs: 3 with a bias, otherwise 2."""

    axis: int = -1
    """First axis over which the statistics are computed."""
    epsilon: float = 1e-5
    """Number that is added to the variance or the mean square."""

    @abstractmethod
    def _standardize(self, x: Array, axes: tuple[int, ...], /) -> Array:
        """Return ``x``, which has elements, normalised over ``axes``."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, scale = input_types(self, inputs, 2, self.maximum_inputs, FLOATS)
        normalize_axis(self.axis, x.rank)
        require_broadcast(scale, x.shape, f"the scale of {self.name}")
        require_broadcast(optional_type(self, inputs, 2), x.shape, f"the bias of {self.name}")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = widen(present(inputs, 0)), widen(present(inputs, 1))
        if not x.size:
            return (present(inputs, 0),)
        bias = input_at(inputs, 2)
        y = self._standardize(x, tuple(range(self.axis % x.ndim, x.ndim))) * scale
        if bias is not None:
            y = y + widen(bias)
        return (narrow(y, present(inputs, 0).dtype),)


class LayerNormalization(RowNormalization):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Mean and variance are computed over the axes from ``axis`` on. Inputs are x, scale, and
    optionally bias.

    Shapes: scale and bias broadcast to x; the result's is x's.

    Dtypes: floating-point, one for all; statistics are computed at least in float32.

    Raises ShapeError: when the axis is out of range, or scale or bias do not broadcast to x.

    Source: ONNX LayerNormalization-17, first result.
    """

    maximum_inputs: ClassVar[int] = 3

    @override
    def _standardize(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return _standardized(x, axes, self.epsilon)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def case(name: str, op: LayerNormalization, *shape: int, half: bool = False) -> Case:
            kind = np.float16 if half else np.float32
            shapes = (shape, shape[op.axis :], shape[op.axis :])
            tensors = [floats(*s, dtype=kind, high=3.0, seed=n) for n, s in enumerate(shapes)]
            tolerance = HALF_TOLERANCE if half else 1e-4
            return Case(name, op, tuple(tensors), tolerance, frozenset({1, 2}))

        yield case("rows", cls(), 2, 5, 33)
        yield case("two_axes", cls(axis=-2), 3, 4, 17)
        yield case("axis_from_front", cls(axis=1, epsilon=1e-3), 2, 3, 4, 5)
        yield case("one_row", cls(), 129)
        arrays = (floats(3, 17), floats(17, seed=1), None)
        yield Case("no_bias", cls(), arrays, constants=frozenset({1}))
        each = (floats(2, 5, 33), floats(5, 33, seed=1), floats(2, 1, 33, seed=2))
        yield Case("scale_and_bias_for_each_row", cls(), each)
        yield case("empty_batch", cls(), 0, 7)
        yield case("float16", cls(), 5, 65, half=True)


class RMSNormalization(RowNormalization):
    """``x / sqrt(mean(x ** 2) + epsilon) * scale``, with the mean over the axes from ``axis`` on.

    Shapes: scale broadcasts to x; the result's is x's.

    Dtypes: floating-point, one for both; the mean is computed at least in float32.

    Raises ShapeError: when the axis is out of range or scale does not broadcast to x.

    Source: ONNX RMSNormalization-23.
    """

    name: ClassVar[str] = "rms_normalization"
    maximum_inputs: ClassVar[int] = 2

    @override
    def _standardize(self, x: Array, axes: tuple[int, ...], /) -> Array:
        return np.asarray(x / np.sqrt(mean(np.square(x), axes) + x.dtype.type(self.epsilon)))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1})
        yield Case("rows", cls(), (floats(2, 5, 33), floats(33, seed=1)), constants=constants)
        arrays = (floats(3, 4, 17), floats(4, 17, seed=1))
        yield Case("two_axes", cls(axis=1), arrays, constants=constants)
        arrays = (floats(2, 5, 33), floats(2, 1, 33, seed=1))
        yield Case("scale_for_each_row", cls(), arrays)
        arrays = (floats(5, 65, dtype=np.float16), floats(65, dtype=np.float16, seed=1))
        yield Case("float16", cls(epsilon=1e-3), arrays, HALF_TOLERANCE, constants)


class LpNormalization(BuiltinOp):
    """``x / norm(x)`` along an axis, with the L1 or the L2 norm; 0 where the norm is 0.

    Shapes: the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the axis is out of range or p is neither 1 nor 2.

    Source: ONNX LpNormalization-22.
    """

    is_recipe_step = True

    axis: int = -1
    """Axis along which the norm is computed."""
    p: int = 2
    """Exponent of the norm, 1 or 2."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes=FLOATS)
        normalize_axis(self.axis, x.rank)
        if self.p not in {1, 2}:
            raise ShapeError(f"p of lp_normalization is {self.p}; it must be 1 or 2")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x = widen(present(inputs, 0))
        powers = np.abs(x) if self.p == 1 else np.square(x)
        total = powers.sum(axis=self.axis, keepdims=True)
        norm: Array = total if self.p == 1 else np.sqrt(total)
        y = x / np.where(norm == 0, np.inf, norm).astype(norm.dtype)
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("rows", cls(), (floats(3, 5, 33),))
        yield Case("channels", cls(axis=1), (floats(2, 17, 4, 5),))
        yield Case("magnitudes", cls(axis=0, p=1), (floats(9, 3),))
        yield Case("zero_row", cls(), (np.array([[0, 0, 0], [3, 0, -4]], np.float32),))
        tiny = np.full((2, 4), 1e-25, np.float32)
        yield Case("squares that underflow", cls(), (tiny,))
        yield Case("float16", cls(), (floats(5, 17, dtype=np.float16),), HALF_TOLERANCE)


class Normalize(BuiltinOp):
    """``x / sqrt(sum(x ** 2) + eps) * scale``. Inputs are x and scale.

    Shapes: x ``[N, C, *spatial]``, scale ``[1]`` if shared, otherwise ``[C]``; the result's is x's.

    Dtypes: floating-point, one for both.

    Raises ShapeError: when the shape of the scale does not match.

    Source: Caffe (SSD) NormalizeLayer.
    """

    across_spatial: bool = True
    """Whether the sum is over the whole image instead of the channels of one pixel."""
    channel_shared: bool = True
    """Whether all channels share one scale."""
    eps: float = 1e-10
    """Number that is added to the sum."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, scale = input_types(self, inputs, 2, dtypes=FLOATS)
        require_rank(x, "the input of normalize", 2, 99)
        require_shape(scale, (1 if self.channel_shared else x.shape[1],), "the scale of normalize")
        return (x,)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, scale = widen(present(inputs, 0)), widen(present(inputs, 1))
        axes = tuple(range(1, x.ndim)) if self.across_spatial else (1,)
        total = np.square(x).sum(axis=axes, keepdims=True) + x.dtype.type(self.eps)
        y = x / np.sqrt(total) * scale.reshape(-1, *[1] * (x.ndim - 2))
        return (narrow(y, present(inputs, 0).dtype),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        constants = frozenset({1})
        x = floats(2, 17, 5, 7)
        shared, each = floats(1, low=1, high=20, seed=1), floats(17, low=1, high=20, seed=1)
        yield Case("image_shared", cls(), (x, shared), constants=constants)
        yield Case("image_each", cls(channel_shared=False), (x, each), constants=constants)
        op = cls(across_spatial=False, channel_shared=False)
        yield Case("place_each", op, (x, each), constants=constants)
        yield Case("place_shared", cls(across_spatial=False), (x, shared), constants=constants)
        zeros = np.zeros((1, 3, 2, 2), np.float32)
        yield Case("zeros", cls(), (zeros, shared), constants=constants)
        arrays = (floats(1, 9, 3, 3, dtype=np.float16), floats(9, dtype=np.float16, seed=1))
        yield Case("float16", op, arrays, HALF_TOLERANCE, constants)


class LRN(BuiltinOp):
    """``x / (bias + alpha / count * sum(neighbour ** 2)) ** beta``.

    The neighbours are ``size`` channels of one pixel (region "across_channels", count ``size``) or,
    for Caffe, a square of ``size`` by ``size`` pixels of one channel (region "within_channel",
    count ``size ** 2``). Elements outside the input are 0.

    Shapes: ``[N, C, *spatial]``, within a channel ``[N, C, H, W]``; the result's is the input's.

    Dtypes: floating-point; the result's is the input's.

    Raises ShapeError: when the rank or the size does not match the region.

    Source: ONNX LRN-13; Caffe LRNLayer, WITHIN_CHANNEL.
    """

    size: int
    """Extent of the neighbourhood."""
    alpha: float = 0.0001
    """Factor of the mean of squares."""
    beta: float = 0.75
    """Exponent."""
    bias: float = 1.0
    """Number that is added to the weighted mean of squares."""
    region: str = "across_channels"
    """Neighbourhood: "across_channels" or "within_channel"."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (x,) = input_types(self, inputs, 1, dtypes=FLOATS)
        require_choice(self.region, ("across_channels", "within_channel"), "region")
        within = self.region == "within_channel"
        require_rank(x, "the input of lrn", 4 if within else 2, 4 if within else 99)
        if self.size > Limit.MAX_WINDOW.most:
            raise ShapeError(f"a window of lrn has {Limit.MAX_WINDOW.excess(self.size)}")
        if self.size < 1 or (within and self.size % 2 == 0):
            raise ShapeError(
                f"size is {self.size}; it must be positive, and odd for within_channel"
            )
        return (x,)

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        elements = element_count(input_type(self, inputs, 0).shape)
        return self.size * (TEMPORARY_OPERATIONS * elements + INTERPRETED_OPERATIONS)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        array = present(inputs, 0)
        x = widen(array)
        within = self.region == "within_channel"
        energy, count = np.square(x), self.size**2 if within else self.size
        for axis in (2, 3) if within else (1,):
            energy = self._sum_neighbours(energy, axis)
        base = x.dtype.type(self.bias) + x.dtype.type(self.alpha / count) * energy
        return (narrow(x * base ** x.dtype.type(-self.beta), array.dtype),)

    def _sum_neighbours(self, x: Array, axis: int) -> Array:
        """Return the sum of ``size`` neighbours of each element along an axis."""
        before = (self.size - 1) // 2
        widths = [(0, 0)] * x.ndim
        widths[axis] = (before, self.size - 1 - before)
        padded = np.moveaxis(np.pad(x, widths), axis, 0)
        total = np.zeros_like(np.moveaxis(x, axis, 0))
        for shift in range(self.size):
            total += padded[shift : shift + x.shape[axis]]
        return np.moveaxis(total, 0, axis)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("across", cls(5, 0.9, 0.75), (floats(2, 17, 5, 7, high=3.0),))
        yield Case("across_even", cls(4, 0.5, 0.6, 2.0), (floats(1, 33, 3, 4, high=3.0),))
        yield Case("across_few_channels", cls(5, 1.0), (floats(1, 3, 4, 4, high=3.0),))
        yield Case("across_series", cls(3, 1.0), (floats(2, 9, 11, high=3.0),))
        op = cls(3, 5.0, 0.75, region="within_channel")
        yield Case("within", op, (floats(2, 17, 7, 5, high=3.0),))
        op = cls(7, 5.0, 0.5, 2.0, region="within_channel")
        yield Case("within_larger_than_image", op, (floats(1, 3, 5, 4, high=3.0),))
        yield Case("empty_batch", cls(5), (floats(0, 3, 4, 4),))
        x = floats(1, 9, 5, 5, dtype=np.float16)
        yield Case("float16", cls(5, 0.9), (x,), HALF_TOLERANCE)


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Return ``x`` with mean 0 and variance 1 over some axes."""
    centred = x - mean(x, axes)
    variance = mean(np.square(centred), axes)
    return np.asarray(centred / np.sqrt(variance + x.dtype.type(epsilon)))


def _channel_case(name: str, op: Op, *shape: int, half: bool = False) -> Case:
    """Return a case with a scale and a bias for each channel."""
    kind = np.float16 if half else np.float32
    x = floats(*shape, dtype=kind, low=-1.0, high=3.0)
    scale, bias = (floats(shape[1], dtype=kind, seed=seed) for seed in (1, 2))
    return Case(name, op, (x, scale, bias), HALF_TOLERANCE if half else 1e-4, frozenset({1, 2}))
