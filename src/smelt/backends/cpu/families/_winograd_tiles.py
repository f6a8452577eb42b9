"""Winograd's tiles: images into tiles, tiles into results, and rows of tiles in scratch memory.

Input transform of Winograd convolution: from an image to planes.

Images of few channels use space-to-depth when the convolution is strided: the channels of a square
of pixels, with as many rows and columns as the stride, become the channels of one pixel. The stride
becomes 1, windows shrink by the stride, and vectors are full.

Output transform of Winograd convolution: from planes of products to the result.

Winograd's three launches fused into one kernel that handles a few rows of tiles at a time.

If the transformed weights fit into L2, a worker transforms the tiles of some rows, multiplies them
and transforms back, all in its own scratch memory. Planes then never move between the caches of
different cores, and workers do not wait for each other between the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cpu._emit import FLOAT_BYTES, Emitter, Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu.families._operand_packing import pad_after, reshape, transpose
from smelt.backends.cpu.families._pixel_loops import PixelKernelWriter, PixelStrides
from smelt.backends.cpu.families._subkernels import call_subkernel, link_subkernels
from smelt.backends.cpu.families._vectors import load, store, unravel
from smelt.backends.cpu.families._winograd_matrices import transformed, winograd_scheme
from smelt.engine import KernelSpec, Launch, View, as_json
from smelt.types import Dim, DType, ceil_div, fixed_shape

if TYPE_CHECKING:
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


class InputTransformWriter:
    """Writes the input transform. A chunk is one row of tiles. Operands: image, planes."""

    def __init__(self, kernel: KernelSpec) -> None:
        """Create a writer of one kernel."""
        k = self.k = kernel
        e = self.e = Emitter(kernel.symbol, 2)
        self.scheme = winograd_scheme(*kernel["scheme"])
        self.s2d_block = kernel.options.integer("s2d_block", 1)
        self.stored = DType(kernel["stored"])
        self.kind = f"<{kernel['lanes']} x float>"
        a = self.a = PixelStrides(*k["a"])
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
        e, lanes = self.e, self.k["lanes"]
        for channel, count in e.blocks(self.k["channels"], lanes):
            mask = None if count == lanes else e.tail_mask(count, lanes)
            self.vector(tile, target, channel, mask)

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


class OutputTransformWriter(PixelKernelWriter):
    """Writes the kernel that transforms products back and applies bias and epilogue.

    A chunk is one row of tiles. Operands: planes, bias (if any), extras, result.
    """

    def __init__(self, kernel: KernelSpec) -> None:
        """Create a writer of one kernel."""
        super().__init__(kernel, 1 + kernel["bias"])
        self.scheme = winograd_scheme(*kernel["scheme"])

    def write(self) -> str:
        """Write the loops over chunks, tiles and vectors of channels; return the module."""
        e, k = self.e, self.k
        filters, across, plane = self.p.channels, k["across"], k["plane"]
        with e.loop(e.begin, e.end) as chunk:
            image, row = unravel(e, chunk.index, (as_json(k["batch"]), k["down"]))
            side = self.scheme.side
            line = e.at(e.pointer(0), e.mul(image, side * side * plane * FLOAT_BYTES))
            line = e.at(line, e.mul(row, across * filters * FLOAT_BYTES))
            with e.loop(0, across) as column:
                tile = e.at(line, e.mul(column.index, filters * FLOAT_BYTES))
                position = (image, row, column.index)

                for channel, (mask,) in self.w.channels(1):
                    self.vector(tile, position, channel, mask)
        return e.module()

    def vector(
        self, tile: Reg, position: tuple[Int, Int, Int], channel: Int, mask: Reg | None
    ) -> None:
        """Write the transform, bias, epilogue and stores of one vector of channels of a tile."""
        e, k, kind = self.e, self.k, self.w.kind
        side = self.scheme.side
        source = e.at(tile, e.mul(channel, FLOAT_BYTES))

        def read(i: int, j: int) -> Reg:
            return load(e, kind, e.at(source, (i * side + j) * k["plane"] * FLOAT_BYTES), mask)

        values = transformed(e, self.scheme.output, read)
        if k["bias"]:
            bias = e.load(kind, e.at(e.pointer(1), e.mul(channel, FLOAT_BYTES)))
            values = [[e.binary("fadd", v, bias) for v in line] for line in values]
        for i, line in enumerate(values):
            row, exists = self.inside(position[1], i, self.p.height)
            with exists:
                for j, value in enumerate(line):
                    column, exists = self.inside(position[2], j, self.p.width)
                    with exists:
                        self.w.finish(value, (position[0], row, column), channel, mask)

    def inside(
        self, tile: Int, ahead: int, extent: Any
    ) -> tuple[Int, AbstractContextManager[None]]:
        """Return the position of a tile's result along an axis, and a context that guards it.

        Tiles at the border may extend beyond the result. The context runs its body only if the
        position exists; it is empty if the extent is a multiple of the tile size.
        """
        e, size = self.e, self.scheme.size
        position = e.add(e.mul(tile, size), ahead)
        if extent % size == 0:
            return position, nullcontext()
        return position, e.when(e.compare("slt", position, extent))


FUSED_COST_RATIO: Final = 0.95
"""Estimated time relative to three launches, where the caches of the cores are near each other.
SqueezeNet on two threads takes 1.01 times as long there, and 0.91 times where caches are far apart
(docs/lab/convolutions.md); the value between them is chosen without a measurement."""
_WEIGHTS_BYTES: Final = 640 << 10
"""Largest size in bytes of weights that stay in L2 beside the planes of some rows of tiles. With
`_PLANES_BYTES` they use 928 KiB of the 1 MiB of L2 that current cores have."""
_PLANES_BYTES: Final = 288 << 10
"""Scratch memory in bytes that the planes may use in any case. `_WEIGHTS_BYTES` names the cache
size."""
_LEAST_CHUNKS: Final = 6
"""Fewest chunks into which an image is cut. Chosen without a measurement."""


@dataclass(frozen=True, slots=True)
class TileRowLayout:
    """Layout of the planes in scratch memory, in bytes."""

    fused_rows: int
    """Rows of tiles per chunk; a divisor of ``down``."""
    down: int
    """Rows of tiles of an image."""
    image_bytes: tuple[int, int]
    """Size of all planes of transformed inputs, and of all planes of products."""
    row_bytes: tuple[int, int]
    """Size of one row of tiles in a plane of inputs, and in a plane of products."""


def choose_fused_rows(
    down: int, weights_bytes: int, planes_bytes: Callable[[int], int]
) -> tuple[int, ...]:
    """Return the numbers of rows of tiles to offer, best guess first; 0 stands for three launches.

    Args:
        down: rows of tiles of an image.
        weights_bytes: size of the transformed weights in bytes.
        planes_bytes: returns the size in bytes of the planes of a number of rows.
    """
    if weights_bytes > _WEIGHTS_BYTES:
        return (0,)
    divisors = (n for n in range(down // _LEAST_CHUNKS, 0, -1) if down % n == 0)
    capacity = max(_PLANES_BYTES, _WEIGHTS_BYTES - weights_bytes)
    best = next((n for n in divisors if planes_bytes(n) <= capacity), 0)
    return (best, 0) if best else (0,)


def fuse_launches(
    launches: Sequence[Launch], tiles: TileRowLayout, views: Sequence[View], batch: Dim
) -> Launch:
    """Return one launch for input transform, products and output transform.

    Args:
        launches: the three launches, planned for planes of ``tiles.fused_rows`` rows.
        tiles: layout of the planes.
        views: input, packed weights, other operands of the output transform, result.
        batch: number of images.
    """
    first, products, last = launches
    kernel = kernel_spec(
        first.kernel.family,
        kernel="fused_rows",
        stages=tuple(launch.kernel.parameters for launch in launches),
        operands=tuple(len(launch.operands) for launch in launches),
        scalars=tuple(len(launch.scalars) for launch in launches),
        chunks=as_json(products.chunks),
        tiles=(tiles.fused_rows, tiles.down, tiles.image_bytes, tiles.row_bytes),
    )
    scalars = (*first.scalars, *products.scalars, *last.scalars)
    chunks, scratch = batch * ceil_div(tiles.down, tiles.fused_rows), sum(tiles.image_bytes)
    return Launch(kernel, tuple(views), (len(views) - 1,), scalars, chunks, scratch)


def write_fused_kernel(kernel: KernelSpec, generate: Callable[[KernelSpec], str]) -> str:
    """Return the code of a fused kernel; ``generate`` returns the code of each stage."""
    stages: Any = as_json(kernel["stages"])
    specs = [KernelSpec(kernel.family, stage) for stage in stages]
    texts = [generate(spec) for spec in specs]
    return link_subkernels(_FusedWriter(kernel, [spec.symbol for spec in specs]).write(), texts)


class _FusedWriter:
    """Writes the loop over chunks that calls the three stages."""

    def __init__(self, kernel: KernelSpec, symbols: Sequence[str]) -> None:
        tiles: Any = as_json(kernel["tiles"])
        self.tiles = TileRowLayout(*tiles)
        self.symbols = symbols
        self.chunks: Int = kernel["chunks"]
        self.operands: Any = kernel["operands"]
        self.scalars: Any = kernel["scalars"]
        packed, rest = self.operands[1] - 2, self.operands[2] - 1
        self.e = Emitter(kernel.symbol, 1 + packed + rest)

    def write(self) -> str:
        """Write the loop over chunks and return the calling kernel.

        The transforms index their chunks by image and row of tiles, the products by plane and tile.
        """
        e, t = self.e, self.tiles
        counts = [n + s for n, s in zip(self.operands, self.scalars, strict=True)]
        frames = [e.emit("ptr", f"alloca [{max(1, n)} x i64], align 16") for n in counts]
        packed = self.operands[1] - 2
        second = e.at(e.scratch, t.image_bytes[0])
        weights = [e.pointer(1 + k) for k in range(packed)]
        rest = [e.pointer(1 + packed + k) for k in range(self.operands[2] - 1)]
        with e.loop(e.begin, e.end) as chunk:
            blocks = t.down // t.fused_rows
            image, row = e.div(chunk.index, blocks), e.mul(e.mod(chunk.index, blocks), t.fused_rows)
            first = e.add(e.mul(image, t.down), row)
            fused_rows = (first, e.add(first, t.fused_rows))
            planes = [self.shifted(at, k, image, row) for k, at in enumerate((e.scratch, second))]
            self.call(0, frames, [e.pointer(0), planes[0]], fused_rows)
            self.call(1, frames, [e.scratch, *weights, second], (0, self.chunks))
            self.call(2, frames, [planes[1], *rest], fused_rows)
        return e.module()

    def shifted(self, at: Reg, part: int, image: Int, row: Int) -> Reg:
        """Return the address at which planes of all rows of all images would start.

        The transforms address planes by image and row. The address is chosen such that this chunk's
        rows are at ``at``.
        """
        e, t = self.e, self.tiles
        before = e.mul(image, t.image_bytes[part])
        before = e.add(before, e.mul(row, t.row_bytes[part]))
        return e.at(at, e.sub(0, before))

    def call(
        self, part: int, frames: Sequence[Reg], operands: Sequence[Reg], chunks: tuple[Int, Int]
    ) -> None:
        """Write the call of one stage for a range of its chunks."""
        e = self.e
        before = sum(self.scalars[:part])
        scalars = [e.i64(e.extent(("arg", before + k))) for k in range(self.scalars[part])]
        call_subkernel(e, self.symbols[part], frames[part], (*operands, *scalars), chunks)
