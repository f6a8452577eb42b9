"""Pad: elements added or removed at the ends of axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op
from smelt.ops._index import integers
from smelt.ops._shape import (
    input_type,
    normalize_axis,
    optional_type,
    require_inputs,
    require_same_dtype,
    require_scalar,
    require_static,
    shape_text,
)
from smelt.ops._shape_operands import dims_at, ints_at, optional_array, present, sample
from smelt.types import TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Operand
    from smelt.types import Dim, Shape, ValueType


@dataclass(frozen=True)
class Pad(Op):
    """The tensor with elements added at both ends of axes; negative pads remove elements.

    ``mode`` selects the added elements: ``constant`` adds the value of input 2 (0 if absent),
    ``edge`` repeats the outermost element, ``reflect`` mirrors the axis without the outermost
    element, ``wrap`` continues at the other end.

    Shapes: (data, pads[2k], value scalar?, axes[k]?) -> data's extents plus pads; the pads are
    those at the start of all axes, then those at the end; k is the rank if ``axes`` is absent.

    Dtypes: any; the value has data's type, pads and axes are integers.

    Raises ShapeError: when the pads are not known or not two for each axis, an extent of the
    result is negative, or an axis has no elements to repeat.

    Source: ONNX Pad-24.
    """

    name: ClassVar[str] = "pad"

    mode: str = "constant"
    """constant, edge, reflect or wrap."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2, 4)
        data = input_type(self, inputs, 0)
        if self.mode not in {"constant", "edge", "reflect", "wrap"}:
            raise ShapeError(
                f"pad mode is {self.mode!r}; it must be constant, edge, reflect or wrap"
            )
        value = optional_type(self, inputs, 2)
        require_same_dtype(data, value)
        require_scalar(value, "the value of pad")
        pads = dims_at(self, inputs, 1, "the pads") or ()
        axes = ints_at(self, inputs, 3, "the axes")
        pairs = pair_pads(data.rank, pads, axes)
        shape = [d + before + after for d, (before, after) in zip(data.shape, pairs, strict=True)]
        for axis, (start, end) in enumerate(pairs):
            before, extent, added = data.shape[axis], shape[axis], (start, end) != (0, 0)
            what = f"axis {axis} of input 0, whose elements are repeated"
            if isinstance(extent, int) and extent < 0:
                raise ShapeError(
                    f"negative pads {shape_text(pads)} remove more elements than {data} has"
                )
            if (
                added
                and extent != 0
                and self.mode != "constant"
                and not assume_at_least(before, 1, what)
            ):
                raise ShapeError(f"pad mode {self.mode} has no elements to repeat in {data}")
        return (TensorType(data.dtype, tuple(shape)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        data, axes = present(inputs, 0), optional_array(inputs, 3)
        pads = tuple(int(p) for p in present(inputs, 1))
        listed = None if axes is None else tuple(int(a) for a in axes)
        for axis, pair in enumerate(pair_pads(data.ndim, pads, listed)):
            before, after = require_static(pair, "pads")
            data = self._pad_axis(data, axis, before, after, optional_array(inputs, 2))
        return (data.copy(),)

    def _pad_axis(
        self, data: Array, axis: int, before: int, after: int, value: Array | None
    ) -> Array:
        """Return data padded along one axis."""
        if self.mode == "wrap" and min(before, after) < 0:
            # Elements are removed before the axis is continued, as in ONNX Runtime.
            remaining = range(max(0, -before), data.shape[axis] - max(0, -after))
            data, before, after = np.take(data, remaining, axis), max(before, 0), max(after, 0)
        extent = data.shape[axis]
        positions = integers(-before, extent + after)
        if self.mode == "constant":
            inside = (positions >= 0) & (positions < extent)
            shape = (*data.shape[:axis], len(positions), *data.shape[axis + 1 :])
            fill = data.dtype.type(0) if value is None else value.reshape(())
            padded = np.full(shape, fill, data.dtype)
            kept = np.flatnonzero(inside)
            np.moveaxis(padded, axis, 0)[kept] = np.moveaxis(data, axis, 0)[positions[kept]]
            return padded
        if self.mode == "edge":
            positions = np.clip(positions, 0, extent - 1)
        elif self.mode == "wrap":
            positions = positions % extent
        else:
            period = max(2 * (extent - 1), 1)
            folded: Array = positions % period
            positions = np.minimum(folded, period - folded) if extent > 1 else folded * 0
        return np.take(data, positions, axis)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        one = frozenset({1})
        frame = np.array([0, 0, 1, 2, 0, 0, 3, 1], np.int64)
        for mode in ("constant", "edge", "reflect", "wrap"):
            yield Case(mode, cls(mode), (sample(1, 2, 4, 5), frame), constants=one)
        value = np.array(-2.5, np.float32)
        yield Case("value", cls(), (sample(2, 3), np.array([1, 0, 0, 2]), value), constants=one)
        negative = np.array([-1, 2, 0, -2], np.int64)
        yield Case("negative pads", cls(), (sample(3, 5), negative), constants=one)
        listed = (sample(2, 3, 4), np.array([1, 2, 0, 1]), None, np.array([-1, 0]))
        yield Case("axes", cls(), listed, constants=frozenset({1, 3}))
        yield Case("from nothing", cls(), (sample(0, 2), np.array([2, 0, 1, 1])), constants=one)
        for dtype in ("float16", "int64", "int8", "bool"):
            array = sample(3, 4, dtype=dtype)
            yield Case(dtype, cls(), (array, np.array([0, 1, 2, 0])), constants=one)


def pair_pads(rank: int, pads: Shape, axes: tuple[int, ...] | None) -> list[tuple[Dim, Dim]]:
    """Return the pads before and after each axis. Raises ShapeError."""
    listed = tuple(range(rank)) if axes is None else tuple(normalize_axis(a, rank) for a in axes)
    if len(pads) != 2 * len(listed) or len(set(listed)) < len(listed):
        raise ShapeError(
            f"pads {shape_text(pads)} must have two numbers for each of the axes {listed}"
        )
    pairs: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for index, axis in enumerate(listed):
        pairs[axis] = (pads[index], pads[index + len(listed)])
    return pairs
