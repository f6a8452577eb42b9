"""Resampling along one axis for Resize: sample positions and interpolation weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.ir import Case
from smelt.ops._shape_operands import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.ir import Array
    from smelt.ops.resize import Resize

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


def resize_cases(make: Callable[..., Resize]) -> Iterator[Case]:
    """Yield the cases of Resize."""
    two, three = frozenset({2}), frozenset({1, 2, 3})
    data = sample(1, 2, 4, 5)
    up = np.array([1, 1, 2, 2], np.float32)
    odd = np.array([1, 1, 1.5, 0.8], np.float32)
    for transform in POINTS[:-1]:
        for mode in ("nearest", "linear", "cubic"):
            op = make(coordinate_transformation_mode=transform, mode=mode)
            yield Case(f"{mode}, {transform}, up", op, (data, None, up), constants=two)
            yield Case(f"{mode}, {transform}, odd", op, (data, None, odd), constants=two)
    for nearest in NEAREST:
        op = make(nearest_mode=nearest, coordinate_transformation_mode="asymmetric")
        down = np.array([1, 1, 0.5, 0.6], np.float32)
        yield Case(f"nearest, {nearest}", op, (data, None, down), constants=two)
    sizes = np.array([1, 2, 3, 9], np.int64)
    for mode in ("nearest", "linear", "cubic"):
        yield Case(f"{mode}, sizes", make(mode=mode), (data, None, None, sizes), constants=three)
    on_axes = make(axes=(2, 3), mode="linear")
    yield Case("axes", on_axes, (data, None, None, np.array([8, 2])), constants=three)
    for policy in ("not_larger", "not_smaller"):
        op = make(axes=(2, 3), keep_aspect_ratio_policy=policy)
        inputs = (data, None, None, np.array([7, 8]))
        yield Case(f"aspect ratio {policy}", op, inputs, constants=three)
    yield from _special_cases(make, data, up)


def _special_cases(make: Callable[..., Resize], data: Array, up: Array) -> Iterator[Case]:
    """Yield cases of cropping, antialiasing, other dtypes and rounding in float32."""
    two, three = frozenset({2}), frozenset({1, 2, 3})
    excluding = make(mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
    yield Case("cubic, outside excluded", excluding, (data, None, up), constants=two)
    region = np.array([0, 0, 0.4, -0.2, 1, 1, 0.8, 1.3], np.float32)
    crop = make(
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=10.0,
    )
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
        part = make(nearest_mode=nearest, coordinate_transformation_mode="tf_crop_and_resize")
        half_region = np.array([0, 0, 0, 0.5, 1, 1, 1, 1], np.float32)
        halved = (data, half_region, up)
        yield Case(f"crop to twice, {nearest}", part, halved, constants=frozenset({1, 2}))
    line = (sample(1, 2, 7), None, np.array([1, 1, 3], np.float32))
    yield Case("one axis of space", make(mode="linear"), line, constants=two)
