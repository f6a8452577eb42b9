"""Resize: linear, nearest or cubic interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import INTERPRETED_OPERATIONS, TEMPORARY_OPERATIONS, Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._shape import (
    FLOATS,
    input_type,
    input_types,
    normalize_axis,
    optional_type,
    require_choice,
    require_dtype,
    require_shape,
    require_static,
)
from smelt.ops._shape_operands import dims_at, input_at, present, sample
from smelt.ops.cast import Cast
from smelt.types import (
    DType,
    Limit,
    TensorType,
    assume_at_least,
    counted,
    is_float_dtype,
    override,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.types import Dim, ValueType


POINTS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
"""Coordinate transformation modes: mappings from result positions to input positions."""

NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""Rounding functions of the nearest modes."""


@dataclass(frozen=True)
class Resampling:
    """Mapping of one axis of the result to the input, with the weights of input elements."""

    op: Resize
    extent: int
    """Number of elements of the input along the axis."""
    size: int
    """Number of elements of the result along the axis."""
    scale: float
    """Ratio of the result's extent to the input's."""
    region: tuple[float, float] = (0.0, 1.0)
    """Start and end of the region that tf_crop_and_resize samples, as fractions of the axis."""

    def points(self) -> Array:
        """Return the input position of each result element; 0 for positions outside the input."""
        points = self._points()
        return np.where(self._leaves(points), np.float32(0), points)

    def _points(self) -> Array:
        """Return the positions, in float32 as ONNX Runtime computes them, so rounding agrees."""
        x = np.arange(self.size, dtype=np.float32)
        mode = self.op.coordinate_transformation_mode
        if mode in {"align_corners", "tf_crop_and_resize"}:
            return self._points_between_ends(x, mode)
        if mode == "asymmetric":
            return x / np.float32(self.scale)
        if mode == "pytorch_half_pixel" and self.size <= 1:
            return np.zeros_like(x)
        half = np.float32(0.5)
        centred = (x + half) / np.float32(self.scale) - half
        if mode == "half_pixel_symmetric":
            exact = self.scale * self.extent
            shift = self.extent / 2 * (1 - self.size / exact) if exact else 0.0
            return np.float32(shift) + centred
        return centred

    def _points_between_ends(self, x: Array, mode: str) -> Array:
        """Return positions that are spread evenly between the ends of the axis or the region."""
        last = np.float32(self.extent - 1)
        start, end = (0.0, 1.0) if mode == "align_corners" else self.region
        with np.errstate(all="ignore"):  # a region may be infinite or NaN
            if self.size > 1:
                step = np.float32(end - start) * last / np.float32(self.size - 1)
                return np.float32(start) * last + x * step
            middle = 0.0 if mode == "align_corners" else 0.5 * (start + end)
            return np.zeros_like(x) + np.float32(middle) * last

    def outside(self) -> Array:
        """Return which positions are outside the input or NaN and take the extrapolation value."""
        return self._leaves(self._points())

    def _leaves(self, points: Array) -> Array:
        if self.op.coordinate_transformation_mode != "tf_crop_and_resize":
            return np.zeros(self.size, np.bool_)
        return ~((points >= 0) & (points <= self.extent - 1))

    def nearest(self) -> Array:
        """Return the index of the element nearest to each position."""
        chosen = NEAREST[self.op.nearest_mode](self.points()).astype(np.int64)
        return np.clip(chosen, 0, self.extent - 1)

    def weights(self) -> Array:
        """Return the weights ``[size, extent]`` of the input elements for each position."""
        points = self.points().astype(np.float64)
        if self.op.mode == "linear" and not self.op.antialias:
            points = np.clip(points, 0, self.extent - 1)
        # With antialiasing, the kernel of a smaller result is stretched over more input elements.
        stretch = max(1.0, 1.0 / self.scale) if self.op.antialias else 1.0
        reach = int(np.ceil((1 if self.op.mode == "linear" else 2) * stretch)) + 1
        weights_of_positions = np.zeros((self.size, self.extent))
        for offset in range(-reach, reach + 1):
            taps = np.floor(points) + offset
            weight = self._kernel((taps - points) / stretch)
            inside = (taps >= 0) & (taps < self.extent)
            if self.op.exclude_outside:
                weight = np.where(inside, weight, 0.0)
            indices = np.clip(taps, 0, self.extent - 1).astype(np.int64)
            np.add.at(weights_of_positions, (np.arange(self.size), indices), weight)
        if self.op.exclude_outside or self.op.antialias:
            weights_of_positions /= weights_of_positions.sum(1, keepdims=True)
        return weights_of_positions

    def _kernel(self, distance: Array) -> Array:
        """Return the linear or cubic interpolation kernel at a distance in elements."""
        x = np.abs(distance)
        if self.op.mode == "linear":
            return np.asarray(np.maximum(1 - x, 0))
        a = self.op.cubic_coeff_a
        near: Array = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))

    def apply(self, data: Array, axis: int) -> Array:
        """Resample data along the axis."""
        if self.scale == 1 and self.size == self.extent and self.region == (0.0, 1.0):
            return data
        if not self.size:
            return np.take(data, np.zeros(0, np.int64), axis)
        if self.op.mode == "nearest":
            return np.take(data, self.nearest(), axis)
        return self._weighted(data, axis)

    def _weighted(self, data: Array, axis: int) -> Array:
        """Return the weighted sums without elements of weight 0, which may be infinite or NaN."""
        weights = self.weights()
        used = weights != 0
        order = np.argsort(~used, 1, kind="stable")[:, : int(used.sum(1).max())]
        total = np.zeros((self.size, *np.delete(data.shape, axis)))
        for taps in order.T:
            weight = weights[np.arange(self.size), taps].reshape(-1, *(1,) * (data.ndim - 1))
            element = np.moveaxis(np.take(data, taps, axis), axis, 0)
            total += np.where(weight != 0, weight * element, 0.0)
        return np.moveaxis(total, 0, axis)


class Resize(BuiltinOp):
    """The tensor resampled along its axes, with nearest, linear or cubic interpolation.

    Axes are resampled one after the other: an element of the result is a weighted sum of elements
    along the axis. The attributes are those of ONNX. A position that is NaN because of the region
    counts as outside the axis and takes the extrapolation value.

    Shapes: (data, roi?, scales[k]?, sizes[k]?) -> data's, with floor(extent * scale) or the sizes;
    k is the number of ``axes``, or the rank. Exactly one of scales and sizes is present.

    Dtypes: floats, any with ``mode`` nearest; roi and scales are floats, sizes are int64.

    Raises ShapeError: when scales or sizes are not known or do not match, or an attribute has an
    unknown value.

    Source: ONNX Resize-19.
    """

    antialias: int = 0
    """Whether linear and cubic interpolation to a smaller extent stretch the kernel over more
    elements of the input."""
    axes: tuple[int, ...] | None = None
    """Axes to which region, scales and sizes refer; a negative one counts from the end, and None
    means all axes."""
    coordinate_transformation_mode: str = "half_pixel"
    """Mapping of result positions to input positions: half_pixel, half_pixel_symmetric,
    pytorch_half_pixel, align_corners, asymmetric or tf_crop_and_resize."""
    cubic_coeff_a: float = -0.75
    """Coefficient a of the kernel of cubic interpolation."""
    exclude_outside: int = 0
    """Whether elements outside the input have weight 0, and the other weights are scaled to the sum
    1."""
    extrapolation_value: float = 0.0
    """Value of the elements whose position tf_crop_and_resize maps outside the input."""
    keep_aspect_ratio_policy: str = "stretch"
    """Use of the sizes: stretch takes them as they are; not_larger and not_smaller scale all axes
    by one factor, so that no extent exceeds, or falls below, its size."""
    mode: str = "nearest"
    """Interpolation: nearest, linear or cubic."""
    nearest_mode: str = "round_prefer_floor"
    """Rounding of positions to elements: round_prefer_floor, round_prefer_ceil, floor or ceil."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        (data,) = input_types(self, inputs, 1, 4)
        self._check_attributes()
        if self.mode != "nearest":
            require_dtype(data, FLOATS, f"input 0 of resize with mode {self.mode}")
        axes = self.resized_axes(data.rank)
        region = optional_type(self, inputs, 1)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            if region is None:
                raise ShapeError("resize with tf_crop_and_resize must have the input roi (input 1)")
            require_shape(region, (2 * len(axes),), "roi (input 1) of resize")
        shape = list(data.shape)
        sizes, scales = dims_at(self, inputs, 3, "the sizes"), input_at(inputs, 2)
        if sizes:
            extents = self._sized([data.shape[a] for a in axes], sizes)
        else:
            extents = _scaled([data.shape[a] for a in axes], scales)
        for axis, extent in zip(axes, extents, strict=True):
            if extent != data.shape[axis] and not _can_resize(data.shape[axis], extent, axis):
                raise ShapeError(
                    f"axis {axis} of {data} cannot be resized to {counted(extent, 'element')}"
                )
            shape[axis] = extent
        return (TensorType(data.dtype, tuple(shape)),)

    def _check_attributes(self) -> None:
        """Check the attributes that are strings. Raises ShapeError."""
        for name, allowed in (
            ("mode", ("nearest", "linear", "cubic")),
            ("coordinate_transformation_mode", POINTS),
            ("nearest_mode", tuple(NEAREST)),
            ("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller")),
        ):
            require_choice(getattr(self, name), allowed, f"{name} of resize")

    def resized_axes(self, rank: int) -> tuple[int, ...]:
        """Return the axes of scales and sizes as non-negative numbers. Raises ShapeError."""
        if self.axes is None:
            return tuple(range(rank))
        axes = tuple(normalize_axis(a, rank) for a in self.axes)
        if len(set(axes)) < len(axes):
            raise ShapeError(f"the axes of resize have duplicates: {self.axes}")
        return axes

    def _sized(self, extents: Sequence[Dim], sizes: Sequence[Dim]) -> list[Dim]:
        """Return the extents for sizes, following the aspect ratio policy. Raises ShapeError."""
        if len(sizes) != len(extents):
            raise ShapeError(
                f"resize has {counted(len(sizes), 'size')}; it must have one for each resized axis "
                f"({len(extents)})"
            )
        if self.keep_aspect_ratio_policy == "stretch":
            return list(sizes)
        fixed = require_static(tuple(extents), "an extent")
        wanted = require_static(tuple(sizes), "a size")
        if 0 in fixed:
            raise ShapeError("resize cannot keep the aspect ratio of an empty tensor")
        scale = self._kept_scale(fixed, wanted)
        return [math.floor(scale * extent + Fraction(1, 2)) for extent in fixed]

    def _kept_scale(self, extents: Sequence[int], sizes: Sequence[int]) -> Fraction:
        ratios = [Fraction(s, e) for s, e in zip(sizes, extents, strict=True)]
        return min(ratios) if self.keep_aspect_ratio_policy == "not_larger" else max(ratios)

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        # Along each axis, an element of the result has a weight of 8 bytes for each element of the
        # input, and a kernel that antialiasing stretches is a loop over as many elements.
        work: Dim = 0
        for kind in results:
            if isinstance(kind, TensorType):
                for before, after in zip(
                    input_type(self, inputs, 0).shape, kind.shape, strict=True
                ):
                    work = work + TEMPORARY_OPERATIONS * before * after
                    if self.antialias and before != after:
                        work = work + 4 * INTERPRETED_OPERATIONS * before
        return work

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, roi = present(inputs, 0), input_at(inputs, 1)
        sizes, scales = input_at(inputs, 3), input_at(inputs, 2)
        axes = self.resized_axes(data.ndim)
        extents = [data.shape[a] for a in axes]
        if sizes is not None and sizes.size:
            wanted = [int(s) for s in sizes]
            new_extents = require_static(tuple(self._sized(extents, wanted)), "a size")
            ratios = [m / e if e else 1.0 for m, e in zip(new_extents, extents, strict=True)]
            if self.keep_aspect_ratio_policy != "stretch":
                ratios = [float(self._kept_scale(extents, wanted))] * len(axes)
        else:
            ratios = [float(s) for s in present((scales,), 0)]
            new_extents = tuple(_scaled_extent(e, r) for e, r in zip(extents, ratios, strict=True))
        result = data.astype(np.float64) if is_float_dtype(data.dtype) else data
        outside = np.zeros((1,) * data.ndim, np.bool_)
        for k, axis in enumerate(axes):
            window = (0.0, 1.0)
            if roi is not None and roi.size:
                window = (float(roi[k]), float(roi[k + len(axes)]))
            resampling = Resampling(self, extents[k], new_extents[k], ratios[k], window)
            result = resampling.apply(result, axis)
            line = resampling.outside().reshape(-1, *(1,) * (data.ndim - 1 - axis))
            outside = outside | line
        if outside.any():
            # Converted first: beside a Python float, 64-bit integers would become float64.
            value = np.array(self.extrapolation_value)
            (fill,) = Cast(DType.from_numpy(data.dtype)).reference(value)
            result = np.where(outside, fill, result)
        return (np.array(result, data.dtype, order="C"),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        two, three = frozenset({2}), frozenset({1, 2, 3})
        data = sample(1, 2, 4, 5)
        up = np.array([1, 1, 2, 2], np.float32)
        odd = np.array([1, 1, 1.5, 0.8], np.float32)
        for transform in POINTS[:-1]:
            for mode in ("nearest", "linear", "cubic"):
                op = cls(coordinate_transformation_mode=transform, mode=mode)
                yield Case(f"{mode}, {transform}, up", op, (data, None, up), constants=two)
                yield Case(f"{mode}, {transform}, odd", op, (data, None, odd), constants=two)
        for nearest in NEAREST:
            op = cls(nearest_mode=nearest, coordinate_transformation_mode="asymmetric")
            down = np.array([1, 1, 0.5, 0.6], np.float32)
            yield Case(f"nearest, {nearest}", op, (data, None, down), constants=two)
        sizes = np.array([1, 2, 3, 9], np.int64)
        for mode in ("nearest", "linear", "cubic"):
            yield Case(f"{mode}, sizes", cls(mode=mode), (data, None, None, sizes), constants=three)
        on_axes = cls(axes=(2, 3), mode="linear")
        yield Case("axes", on_axes, (data, None, None, np.array([8, 2])), constants=three)
        for policy in ("not_larger", "not_smaller"):
            op = cls(axes=(2, 3), keep_aspect_ratio_policy=policy)
            inputs = (data, None, None, np.array([7, 8]))
            yield Case(f"aspect ratio {policy}", op, inputs, constants=three)
        yield from _special_cases(cls, data, up)


def _special_cases(make: type[Resize], data: Array, up: Array) -> Iterator[Case]:
    """Yield cases of cropping, antialiasing, other dtypes and rounding in float32."""
    two, three = frozenset({2}), frozenset({1, 2, 3})
    excluding = make(mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
    yield Case("cubic, outside excluded", excluding, (data, None, up), constants=two)
    region = np.array([0, 0, 0.4, -0.2, 1, 1, 0.8, 1.3], np.float32)
    transform = "tf_crop_and_resize"
    crop = make(mode="linear", coordinate_transformation_mode=transform, extrapolation_value=10.0)
    cropped = (data, region, None, np.array([1, 2, 3, 6], np.int64))
    yield Case("crop", crop, cropped, constants=three)
    small = np.array([1, 1, 0.5, 0.6], np.float32)
    for mode in ("linear", "cubic"):
        op = make(mode=mode, antialias=1)
        yield Case(f"{mode}, no aliases", op, (sample(1, 1, 9, 10), None, small), constants=two)
    half = sample(1, 2, 3, 3, dtype="float16")
    # 10 by the float32 below 0.7: exactly a little less than 7.
    below = np.array([1, 0.7], np.float32)
    yield Case("a product in float32", make(), (sample(2, 10), None, below), constants=two)
    yield Case("float16", make(mode="linear"), (half, None, up), 3e-3, constants=two)
    yield Case("int8", make(), (sample(1, 2, 3, 3, dtype="int8"), None, up), constants=two)
    # Extents of integer factors, and yet not a repetition: the scale or the region says more.
    for nearest in ("round_prefer_floor", "floor"):
        op = make(nearest_mode=nearest, coordinate_transformation_mode="asymmetric")
        fraction = np.array([1, 1, 1.2, 2.2], np.float32)
        yield Case(f"nearly twice, {nearest}", op, (data, None, fraction), constants=two)
        part = make(nearest_mode=nearest, coordinate_transformation_mode=transform)
        half_region = np.array([0, 0, 0, 0.5, 1, 1, 1, 1], np.float32)
        halved = (data, half_region, up)
        yield Case(f"crop to twice, {nearest}", part, halved, constants=frozenset({1, 2}))
    line = (sample(1, 2, 7), None, np.array([1, 1, 3], np.float32))
    yield Case("one spatial axis", make(mode="linear"), line, constants=two)


def _scaled(extents: Sequence[Dim], scales: Operand | None) -> list[Dim]:
    """Return the extents multiplied by constant scales. Raises ShapeError."""
    if scales is None or scales.value is None or scales.value.shape != (len(extents),):
        raise ShapeError(
            f"resize must have one constant scale for each resized axis ({len(extents)}), or sizes"
        )
    scaled: list[Dim] = []
    for extent, scale in zip(extents, (float(s) for s in scales.value), strict=True):
        if not scale > 0:
            raise ShapeError(f"a scale of resize is {scale}; it must be positive")
        if scale > Limit.MAX_EXTENT.most:
            most = f"{Limit.MAX_EXTENT.most:,} (MAX_EXTENT)"
            raise ShapeError(f"a scale of resize is {scale:g}; it must be at most {most}")
        if isinstance(extent, int):
            scaled.append(_scaled_extent(extent, scale))
            continue
        ratio = Fraction(scale)
        if ratio.denominator > 1 << 12:
            raise ShapeError(
                f"resize cannot multiply the symbolic extent {extent} by {scale} exactly: fix the "
                f"value of {', '.join(sorted(symbols_of(extent)))} in the model"
            )
        scaled.append(extent * ratio.numerator // ratio.denominator)
    return scaled


def _scaled_extent(extent: int, scale: float) -> int:
    """Return floor(extent * scale), computed in float32 as ONNX does: 10 * 0.7 gives 7."""
    return math.floor(np.float32(extent) * np.float32(scale))


def _can_resize(extent: Dim, size: Dim, axis: int) -> bool:
    """Return whether an extent can be resized to a size: a non-empty result needs elements.

    If symbols decide it, a guard is recorded.
    """
    what = f"the resized axis {axis} of input 0"
    is_negative = isinstance(size, int) and size < 0
    return (size == 0 or assume_at_least(extent, 1, what)) and not is_negative
