"""Resize: resampling of a tensor along its axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._resampling import NEAREST, POINTS, Resampling, resize_cases
from smelt.ops._shape import (
    FLOATS,
    input_type,
    normalize_axis,
    optional_type,
    require_dtype,
    require_inputs,
    require_shape,
    require_static,
)
from smelt.ops._shape_operands import dims_at, operand_at, optional_array, present
from smelt.types import Limit, TensorType, assume_at_least, is_float_dtype, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, ValueType


@dataclass(frozen=True)
class Resize(Op):
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

    name: ClassVar[str] = "resize"

    antialias: int = 0
    axes: tuple[int, ...] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 1, 4)
        data = input_type(self, inputs, 0)
        self._check_attributes()
        if self.mode != "nearest":
            require_dtype(data, FLOATS, f"input 0 of resize with mode {self.mode}")
        axes = self.resized_axes(data.rank)
        region = optional_type(self, inputs, 1)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            if region is None:
                raise ShapeError("resize with tf_crop_and_resize must have the region (input 1)")
            require_shape(region, (2 * len(axes),), "the region of resize")
        shape = list(data.shape)
        sizes, scales = dims_at(self, inputs, 3, "the sizes"), operand_at(inputs, 2)
        if sizes:
            extents = self._sized([data.shape[a] for a in axes], sizes)
        else:
            extents = _scaled([data.shape[a] for a in axes], scales)
        for axis, extent in zip(axes, extents, strict=True):
            if extent != data.shape[axis] and not _can_resize(data.shape[axis], extent, axis):
                raise ShapeError(f"resize of {data} cannot give an extent of {extent}")
            shape[axis] = extent
        return (TensorType(data.dtype, tuple(shape)),)

    def _check_attributes(self) -> None:
        """Check the attributes that are strings. Raises ShapeError."""
        for value, allowed in (
            (self.mode, ("nearest", "linear", "cubic")),
            (self.coordinate_transformation_mode, POINTS),
            (self.nearest_mode, tuple(NEAREST)),
            (self.keep_aspect_ratio_policy, ("stretch", "not_larger", "not_smaller")),
        ):
            if value not in allowed:
                raise ShapeError(
                    f"an attribute of resize is {value!r}; it must be one of {', '.join(allowed)}"
                )

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
            raise ShapeError(f"resize has {len(sizes)} sizes for {len(extents)} axes")
        if self.keep_aspect_ratio_policy == "stretch":
            return list(sizes)
        fixed, wanted = (
            require_static(tuple(extents), "an extent"),
            require_static(tuple(sizes), "a size"),
        )
        if 0 in fixed:
            raise ShapeError("resize cannot keep the aspect ratio of an empty tensor")
        scale = self._kept_scale(fixed, wanted)
        return [math.floor(scale * extent + Fraction(1, 2)) for extent in fixed]

    def _kept_scale(self, extents: Sequence[int], sizes: Sequence[int]) -> Fraction:
        ratios = [Fraction(s, e) for s, e in zip(sizes, extents, strict=True)]
        return min(ratios) if self.keep_aspect_ratio_policy == "not_larger" else max(ratios)

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        # Along each axis, an element of the result has a weight for each element of the input.
        work: Dim = 0
        for kind in results:
            if isinstance(kind, TensorType):
                pairs = zip(input_type(self, inputs, 0).shape, kind.shape, strict=True)
                work = work + sum((before * after for before, after in pairs), 0)
        return work

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, roi = present(inputs, 0), optional_array(inputs, 1)
        sizes, scales = optional_array(inputs, 3), optional_array(inputs, 2)
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
            window = (
                (0.0, 1.0)
                if roi is None or not roi.size
                else (float(roi[k]), float(roi[k + len(axes)]))
            )
            resampling = Resampling(self, extents[k], new_extents[k], ratios[k], window)
            result = resampling.apply(result, axis)
            line = resampling.outside().reshape(-1, *(1,) * (data.ndim - 1 - axis))
            outside = outside | line
        if outside.any():
            result = np.where(outside, self.extrapolation_value, result)
        return (np.array(result, data.dtype, order="C"),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from resize_cases(cls)


def _scaled(extents: Sequence[Dim], scales: Operand | None) -> list[Dim]:
    """Return the extents multiplied by constant scales. Raises ShapeError."""
    if scales is None or scales.value is None or scales.value.shape != (len(extents),):
        raise ShapeError(f"resize must have {len(extents)} constant scales, or sizes")
    scaled: list[Dim] = []
    for extent, scale in zip(extents, (float(s) for s in scales.value), strict=True):
        if not scale > 0:
            raise ShapeError(f"a scale of resize is {scale}; it must be positive")
        if scale > Limit.MAX_EXTENT.most:
            raise ShapeError(
                f"resize replaces each element by {Limit.MAX_EXTENT.excess(f'{scale:g}')}"
            )
        if isinstance(extent, int):
            scaled.append(_scaled_extent(extent, scale))
            continue
        ratio = Fraction(scale)
        if ratio.denominator > 1 << 12:
            raise ShapeError(
                f"resize cannot multiply the symbolic extent {extent} by {scale}: fix its symbols"
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
    what = f"axis {axis} of input 0, which is resized"
    return (size == 0 or assume_at_least(extent, 1, what)) and not (
        isinstance(size, int) and size < 0
    )
