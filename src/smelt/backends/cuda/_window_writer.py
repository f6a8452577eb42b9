"""Kernels that gather windows tap by tap: pools and transposed convolutions.

A program computes a tile of positions by channels. Specs have ``axes`` (images, spatial axes,
channels: extent, then strides) and ``windows`` (taps, stride, dilation, padding, input extent and
stride of each spatial axis).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._kernel_source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends._launch_scalars import LaunchScalars
    from smelt.engine import Json, KernelSpec, View
    from smelt.ops import AveragePool, ConvTranspose, MaxPool
    from smelt.types import Dim


def axes_of(
    x: View, out: View, strides: Sequence[tuple[Dim, ...]], scalars: LaunchScalars
) -> tuple[Json, ...]:
    """Return the result's axes, channels last, with the strides of ``x`` and those that follow."""
    order = (0, *range(2, len(out.shape)), 1)
    return tuple(
        scalars.all_json((out.shape[a], x.strides[a], *(s[a] for s in strides))) for a in order
    )


def windows_of(
    root: MaxPool | AveragePool | ConvTranspose, x: View, scalars: LaunchScalars, *, pads: int
) -> tuple[Json, ...]:
    """Return the window's axes, with ``pads`` of the two paddings of each."""
    return tuple(
        (
            root.kernel_shape[a],
            root.strides[a],
            root.dilations[a],
            *root.pad_pairs[a][:pads],
            *scalars.all_json((x.shape[2 + a], x.strides[2 + a])),
        )
        for a in range(len(root.kernel_shape))
    )


class WindowWriter:
    """Writer of the kernel of one spec; ``i`` numbers positions, ``c`` channels."""

    weights: ClassVar[int] = 0
    """Number of operands after the image that are weights, for which axes have no strides."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.axes: Any = kernel["axes"]
        self.windows: Any = kernel["windows"]
        self.rows, self.columns, *_ = kernel["tile"]
        self.names = ["n", *(f"d{a}" for a in range(len(self.windows)))]

    def extra_reader(self) -> Callable[[int], str]:
        """Return a function from an epilogue operand's number to its variable."""
        return self.s.extra_reader(1 + self.weights, self.place, "m")

    def finish(self, read: Callable[[int], str], value: str) -> str:
        """Write the epilogue of a value and the store of the result; return the kernel's text."""
        result = write_stages(self.s.line, self.k["stages"], read, [value])
        last = len(self.s.dtypes) - 1
        self.s.store(last, self.place(last), result, "m")
        return self.s.text()

    def place(self, operand: int) -> str:
        """Return the offsets of an operand's elements."""
        number = operand - self.weights
        row_offset = f"i * 0 + {self.s.offset(self.names, self.axes[:-1], number)}"
        column_offset = f"c * 0 + {self.s.sum_of(('c', self.axes[-1][1 + number]))}"
        return f"({row_offset})[:, None] + ({column_offset})[None, :]"
