"""Resampling along one axis: where the points lie, and which elements make up each."""

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
"""Ways to place the points of the result on an axis of the input."""

NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""Ways to choose one of two neighbours."""


@dataclass(frozen=True)
class Resampling:
    """The points of a result's axis on the input's, and the weights of the elements around each."""

    op: Resize
    extent: int
    """Elements of the input's axis."""
    size: int
    """Elements of the result's axis."""
    scale: float
    region: tuple[float, float] = (0.0, 1.0)
    """Part of the axis that tf_crop_and_resize samples."""

    def points(self) -> Array:
        """Where each element of the result lies on the input's axis; 0 for those outside of it."""
        points = self._points()
        return np.where(self._leaves(points), np.float32(0), points)

    def _points(self) -> Array:
        """In single precision, as ONNX Runtime computes them: which is nearest depends on it."""
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
        last = np.float32(self.extent - 1)
        start, end = (0.0, 1.0) if mode == "align_corners" else self.region
        with np.errstate(all="ignore"):  # a region may be infinite, or no number
            if self.size > 1:
                step = np.float32(end - start) * last / np.float32(self.size - 1)
                return np.float32(start) * last + x * step
            middle = 0.0 if mode == "align_corners" else 0.5 * (start + end)
            return np.zeros_like(x) + np.float32(middle) * last

    def outside(self) -> Array:
        """Which points lie outside the axis, or nowhere, and take the extrapolation value."""
        return self._leaves(self._points())

    def _leaves(self, points: Array) -> Array:
        if self.op.coordinate_transformation_mode != "tf_crop_and_resize":
            return np.zeros(self.size, np.bool_)
        return ~((points >= 0) & (points <= self.extent - 1))

    def nearest(self) -> Array:
        """The element nearest to each point."""
        chosen = NEAREST[self.op.nearest_mode](self.points()).astype(np.int64)
        return np.clip(chosen, 0, self.extent - 1)

    def weights(self) -> Array:
        """One row for each point: the weight of every element of the axis."""
        points = self.points().astype(np.float64)
        if self.op.mode == "linear" and not self.op.antialias:
            points = np.clip(points, 0, self.extent - 1)
        # A smaller result looks at more elements of the input when it is to be free of aliases.
        stretch = max(1.0, 1.0 / self.scale) if self.op.antialias else 1.0
        reach = int(np.ceil((1 if self.op.mode == "linear" else 2) * stretch)) + 1
        made = np.zeros((self.size, self.extent))
        for offset in range(-reach, reach + 1):
            taps = np.floor(points) + offset
            weight = self._kernel((taps - points) / stretch)
            inside = (taps >= 0) & (taps < self.extent)
            if self.op.exclude_outside:
                weight = np.where(inside, weight, 0.0)
            places = np.clip(taps, 0, self.extent - 1).astype(np.int64)
            np.add.at(made, (np.arange(self.size), places), weight)
        if self.op.exclude_outside or self.op.antialias:
            made /= made.sum(1, keepdims=True)
        return made

    def _kernel(self, distance: Array) -> Array:
        x = np.abs(distance)
        if self.op.mode == "linear":
            return np.asarray(np.maximum(1 - x, 0))
        a = self.op.cubic_coeff_a
        near: Array = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))

    def apply(self, data: Array, axis: int) -> Array:
        """Data resampled along the axis."""
        if self.scale == 1 and self.size == self.extent and self.region == (0.0, 1.0):
            return data
        if not self.size:
            return np.take(data, np.zeros(0, np.int64), axis)
        if self.op.mode == "nearest":
            return np.take(data, self.nearest(), axis)
        return self._weighted(data, axis)

    def _weighted(self, data: Array, axis: int) -> Array:
        """Sums of the elements that have weights; others may be infinite, or no numbers."""
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
    """The cases of Resize."""
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
