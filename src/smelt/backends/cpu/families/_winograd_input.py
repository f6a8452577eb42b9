"""Input transform of Winograd convolution: from an image to planes.

Images of few channels use space-to-depth when the convolution is strided: the channels of a square
of pixels, with as many rows and columns as the stride, become the channels of one pixel. The stride
becomes 1, windows shrink by the stride, and vectors are full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu.families._operand_packing import pad_after, reshape, transpose
from smelt.backends.cpu.families._pixel_loops import PixelStrides
from smelt.backends.cpu.families._vectors import load, store, unravel
from smelt.backends.cpu.families._winograd_matrices import transformed, winograd_scheme
from smelt.engine import as_json
from smelt.types import DType, fixed_shape

if TYPE_CHECKING:
    from smelt.engine import KernelSpec
    from smelt.ir import Constant

_RANK: Final = 4
"""Rank of two-dimensional convolution weights."""


def space_to_depth_weights(weights: Constant, s2d_block: int) -> Constant:
    """Return weights ``[filter, channel, row, column]`` for an image after space-to-depth."""
    if s2d_block == 1:
        return weights
    filters, channels, window, _ = fixed_shape(weights.type.shape)
    taps = -(-window // s2d_block)
    for axis in (2, 3):
        weights = pad_after(weights, axis, taps * s2d_block - window, _RANK)
    parted = reshape(weights, filters, channels, taps, s2d_block, taps, s2d_block)
    permuted = transpose(parted, 0, 3, 5, 1, 2, 4)
    return reshape(permuted, filters, s2d_block * s2d_block * channels, taps, taps)


def write_input_transform(kernel: KernelSpec) -> str:
    """Return the LLVM IR of the input transform.

    A chunk is one row of tiles. Operands: image, planes.
    """
    return _Writer(kernel).write()


class _Writer:
    """Writes the input transform."""

    def __init__(self, kernel: KernelSpec) -> None:
        k = self.k = kernel
        e = self.e = Emitter(kernel.symbol, 2)
        self.scheme = winograd_scheme(*kernel["scheme"])
        self.s2d_block = kernel.options.integer("s2d_block", 1)
        self.stored = DType(kernel["stored"])
        self.kind = f"<{kernel['lanes']} x float>"
        a = self.a = PixelStrides(*cast("tuple[Any, ...]", as_json(k["a"])))
        self.row_bytes, self.column_bytes = a.bytes_of(e, 1, a.row), a.bytes_of(e, 1, a.column)

    def write(self) -> str:
        """Write the loops over chunks and tiles, and return the module."""
        e, k, a, size = self.e, self.k, self.a, self.stored.size_bytes
        across, channels, step = k["across"], k["channels"], self.scheme.step * self.s2d_block
        with e.loop(e.begin, e.end) as chunk:
            image, row = unravel(e, chunk.index, (as_json(k["batch"]), k["down"]))
            start = a.bytes_of(e, 1, as_json(k["start"]))
            line = e.at(e.at(e.pointer(0), start), e.mul(image, a.bytes_of(e, 1, a.image)))
            line = e.at(line, e.mul(row, e.mul(self.row_bytes, step)))
            planes = e.at(e.pointer(1), e.mul(image, self.scheme.side**2 * k["plane"] * size))
            planes = e.at(planes, e.mul(row, across * channels * size))
            with e.loop(0, across) as column:
                tile = e.at(line, e.mul(column.index, e.mul(self.column_bytes, step)))
                target = e.at(planes, e.mul(column.index, channels * size))
                if self.s2d_block > 1:
                    self.s2d_tile(tile, target)
                else:
                    self.tile(tile, target)
        return e.module()

    def tile(self, tile: Reg, target: Reg) -> None:
        """Write the transform of a tile, one vector of channels at a time."""
        e, channels, lanes = self.e, self.k["channels"], self.k["lanes"]
        full_end = channels // lanes * lanes
        with e.loop(0, full_end, lanes) as channel:
            self.vector(tile, target, channel.index, None)
        if full_end < channels:
            self.vector(tile, target, full_end, e.tail_mask(channels - full_end, lanes))

    def vector(self, tile: Reg, target: Reg, channel: Int, mask: Reg | None) -> None:
        """Write the transform of one vector of channels."""
        e = self.e
        source = e.at(tile, self.a.bytes_of(e, channel))

        def read(row: int, column: int) -> Reg:
            return load(e, self.kind, self.pixel(source, row, column), mask, self.a.dtype)

        destination = e.at(target, e.mul(channel, self.stored.size_bytes))
        self.write_planes(transformed(e, self.scheme.input, read), destination, mask)

    def s2d_tile(self, tile: Reg, target: Reg) -> None:
        """Write the transform of a tile after space-to-depth.

        Each step handles as many rows of the squares as fit into one vector.
        """
        e, s2d_block, lanes = self.e, self.s2d_block, self.k["lanes"]
        row_channels = self.k["channels"] // s2d_block
        rows = max(
            n for n in range(1, s2d_block + 1) if s2d_block % n == 0 and n * row_channels <= lanes
        )
        for first in range(0, s2d_block, rows):

            def read(row: int, column: int, first: int = first) -> Reg:
                return self.square(tile, row * s2d_block + first, column * s2d_block, rows)

            mask = e.tail_mask(rows * row_channels, lanes)
            destination = e.at(target, first * row_channels * self.stored.size_bytes)
            self.write_planes(transformed(e, self.scheme.input, read), destination, mask)

    def square(self, tile: Reg, row: int, column: int, rows: int) -> Reg:
        """Return the channels of some rows of a square of pixels in one vector.

        Each part is a masked load whose address is shifted such that the part arrives in its lanes;
        the parts are then merged by selects.
        """
        e, channels = self.e, self.k["channels"] // self.s2d_block**2
        contiguous = self.a.column == channels
        width = self.s2d_block if contiguous else 1
        size = self.a.dtype.size_bytes
        parts: list[tuple[Reg, Reg]] = []
        for position in range(0, rows * self.s2d_block, width):
            down, right = divmod(position, self.s2d_block)
            mask = self.lanes(position * channels, (position + width) * channels)
            at = e.at(self.pixel(tile, row + down, column + right), -position * channels * size)
            parts.append((mask, load(e, self.kind, at, mask, self.a.dtype)))
        (_, total), *others = parts
        for mask, part in others:
            total = e.select(mask, part, total)
        return total

    def lanes(self, first: int, end: int) -> Reg:
        """Return a constant mask of the lanes from ``first`` up to, but without, ``end``."""
        bits = ", ".join(f"i1 {int(first <= i < end)}" for i in range(self.k["lanes"]))
        return Reg(f"<{bits}>", f"<{self.k['lanes']} x i1>")

    def pixel(self, at: Reg, row: int, column: int) -> Reg:
        """Return the address of the pixel some rows and columns after the one at ``at``."""
        e = self.e
        return e.at(e.at(at, e.mul(self.row_bytes, row)), e.mul(self.column_bytes, column))

    def write_planes(self, values: list[list[Reg]], destination: Reg, mask: Reg | None) -> None:
        """Store each value of a transformed tile in its plane."""
        e, size = self.e, self.stored.size_bytes
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                plane = (row * self.scheme.side + column) * self.k["plane"]
                store(e, value, e.at(destination, plane * size), mask, self.stored)
