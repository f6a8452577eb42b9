"""Kernels that gather windows tap by tap: pools and transposed convolutions.

A program computes a tile of positions by channels. Specs have ``axes`` (images, spatial axes,
channels: extent, then strides) and ``windows`` (taps, stride, dilation, padding, input extent and
stride of each spatial axis).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._kernel_source import KernelWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import KernelSpec, View
    from smelt.ops import AveragePool, ConvTranspose, MaxPool
    from smelt.types import Dim


def axes_of(
    x: View, out: View, extras: Sequence[tuple[View, tuple[Dim, ...]]]
) -> tuple[tuple[Dim, ...], ...]:
    """Return the result's axes, channels last, with the strides of all operands but weights."""
    order = (0, *range(2, len(out.shape)), 1)
    all_strides = (x.strides, *(strides for _, strides in extras), out.strides)
    return tuple((out.shape[a], *(strides[a] for strides in all_strides)) for a in order)


def windows_of(
    root: MaxPool | AveragePool | ConvTranspose, x: View, *, pads_per_axis: int
) -> tuple[tuple[Dim, ...], ...]:
    """Return the window's axes, with ``pads_per_axis`` of the two paddings of each."""
    return tuple(
        (
            root.kernel_shape[a],
            root.strides[a],
            root.dilations[a],
            *root.pad_pairs[a][:pads_per_axis],
            x.shape[2 + a],
            x.strides[2 + a],
        )
        for a in range(len(root.kernel_shape))
    )


class WindowWriter(KernelWriter):
    """Base of the writers of kernels on windows; ``i`` numbers positions, ``c`` channels."""

    weights: ClassVar[int] = 0
    """Number of operands after the image that are weights, for which axes have no strides."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.axes: Any = kernel["axes"]
        self.windows: Any = kernel["windows"]
        self.rows, self.columns, *_ = kernel["tile"]
        self.names = ["n", *(f"d{a}" for a in range(len(self.windows)))]
        self.taps = prod(w[0] for w in self.windows)
        first = 1 + self.weights
        self.read = self.s.extra_reader(first, lambda n: self.s.load(n, self.place(n), "m"))
        """Function from an epilogue operand's number to its variable."""

    def finish(self, value: str) -> str:
        """Write the epilogue of a value and the store of the result; return the kernel's text."""
        result = write_stages(self.s.line, self.k["stages"], self.read, [value])
        self.s.store(self.last, self.place(self.last), result, "m")
        return self.s.text()

    def place(self, operand: int) -> str:
        """Return the offsets of an operand's elements."""
        number = operand - self.weights
        row_offset = f"i * 0 + {self.s.offset(self.names, self.axes[:-1], number)}"
        column_offset = f"c * 0 + {self.s.sum_of(('c', self.axes[-1][1 + number]))}"
        return f"({row_offset})[:, None] + ({column_offset})[None, :]"
