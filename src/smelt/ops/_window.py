"""Base class of convolutions and poolings: windows that slide over the spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from smelt.errors import ShapeError
from smelt.ir import TEMPORARY_OPERATIONS
from smelt.ops._base import BuiltinOp
from smelt.ops._shape import input_type, require_rank, require_static, window_extent
from smelt.types import DType, Limit, TensorType, element_count, override, require_ints

if TYPE_CHECKING:
    from smelt.ir import Array, Operand
    from smelt.types import Dim, Shape, ValueType


class Windowed(BuiltinOp):
    """Op with sliding windows; empty attributes mean strides and dilations of 1 and no padding."""

    kernel_shape: tuple[int, ...]
    """Extents of the window, one for each spatial axis."""
    strides: tuple[int, ...] = ()
    """Steps between windows."""
    pads: tuple[int, ...] = ()
    """Padding before each spatial axis, then after each."""
    dilations: tuple[int, ...] = ()
    """Steps between the elements of a window."""

    def __post_init__(self) -> None:
        what = f"kernel_shape of {self.name}"
        kernel = require_ints(self.kernel_shape, what, ShapeError, minimum=1)
        rank = len(kernel)
        object.__setattr__(self, "kernel_shape", kernel)
        fields = (("strides", 1, rank), ("pads", 0, 2 * rank), ("dilations", 1, rank))
        for field, default, length in fields:
            object.__setattr__(self, field, self._numbers(field, default, length))
        largest = max((*self.strides, *self.pads, *self.dilations, prod(kernel)))
        if largest > Limit.MAX_WINDOW.most:
            raise ShapeError(
                f"the window of {self.name} or one of its strides, pads or dilations is too large: "
                f"{Limit.MAX_WINDOW.excess(largest)}"
            )

    def _numbers(self, field: str, default: int, length: int) -> tuple[int, ...]:
        """Return the numbers of an attribute; an empty one becomes ``length`` times the default."""
        what = f"{field} of {self.name}"
        numbers = require_ints(getattr(self, field), what, ShapeError, minimum=default)
        return require_ints(numbers or (default,) * length, what, ShapeError, count=length)

    @property
    def pad_pairs(self) -> tuple[tuple[int, int], ...]:
        """Padding before and after each spatial axis."""
        rank = len(self.kernel_shape)
        return tuple(zip(self.pads[:rank], self.pads[rank:], strict=True))

    def _window_counts(self, x: TensorType, *, ceil_mode: bool = False) -> Shape:
        """Return the number of windows along each spatial axis. Raises ShapeError."""
        require_rank(x, f"the input of {self.name}", len(self.kernel_shape) + 2)
        windows = zip(self.kernel_shape, self.strides, self.dilations, self.pad_pairs, strict=True)
        return tuple(
            window_extent(extent, *window, ceil_mode=ceil_mode, what=f"axis {axis} of input 0")
            for axis, (extent, window) in enumerate(zip(x.shape[2:], windows, strict=True), 2)
        )

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        shape = input_type(self, inputs, 0).shape
        padded = [d + sum(pads) for d, pads in zip(shape[2:], self.pad_pairs, strict=True)]
        work = self.count_flop(inputs)
        work = work + TEMPORARY_OPERATIONS * element_count((*shape[:2], *padded))
        for kind in results:
            if isinstance(kind, TensorType):
                taps = prod(self.kernel_shape)
                positions = TEMPORARY_OPERATIONS * sum(kind.shape[2:], 0) * max(self.kernel_shape)
                work = work + element_count(kind.shape) * taps + positions
        return work

    def _tap_flop(self, inputs: Sequence[Operand | None], positions: Shape) -> Dim:
        """Return the multiplications and additions of a convolution with the weights of input 1."""
        taps = input_type(self, inputs, 1).shape[1:]
        return 2 * element_count(positions) * element_count(taps)

    def _counts_on(self, x: Array, *, ceil_mode: bool = False) -> tuple[int, ...]:
        """Return the number of windows along each spatial axis of an array."""
        kind = TensorType(DType.from_numpy(x.dtype), x.shape)
        return require_static(self._window_counts(kind, ceil_mode=ceil_mode), "the extents")

    def _windows(self, x: Array, counts: Sequence[int], fill: float) -> Array:
        """Return a view ``[N, C, *counts, *kernel_shape]`` of the input padded with ``fill``."""
        reaches = [(k - 1) * d + 1 for k, d in zip(self.kernel_shape, self.dilations, strict=True)]
        ends = [
            (count - 1) * stride + reach
            for count, stride, reach in zip(counts, self.strides, reaches, strict=True)
        ]
        widths = [(0, 0), (0, 0)]
        for extent, end, (before, after) in zip(x.shape[2:], ends, self.pad_pairs, strict=True):
            widths.append((before, max(after, end - extent - before)))
        padded = np.pad(x, widths, constant_values=fill) if any(map(any, widths)) else x
        axes = tuple(range(2, x.ndim))
        view = sliding_window_view(padded, reaches, axis=axes)
        every = slice(None)
        starts = [slice(0, (c - 1) * s + 1, s) for c, s in zip(counts, self.strides, strict=True)]
        return view[(every, every, *starts, *(slice(None, None, d) for d in self.dilations))]

    def _window_sizes(self, x: Array, counts: Sequence[int], *, padded: bool) -> Array:
        """Return how many elements of each window are inside the input, or the padded input."""
        total = np.ones((), np.int64)
        for axis, count in enumerate(counts):
            before, after = self.pad_pairs[axis]
            first = np.arange(count)[:, None] * self.strides[axis] - before
            index = first + np.arange(self.kernel_shape[axis]) * self.dilations[axis]
            low, high = (-before, x.shape[axis + 2] + after) if padded else (0, x.shape[axis + 2])
            inside = np.count_nonzero((index >= low) & (index < high), axis=1)
            total = np.multiply.outer(total, inside)
        return total
