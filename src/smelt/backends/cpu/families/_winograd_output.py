"""Output transform of Winograd convolution: from planes of products to the result."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu.families._pixel_loops import PixelLoopSpec, PixelLoopWriter
from smelt.backends.cpu.families._vectors import load, unravel
from smelt.backends.cpu.families._winograd_matrices import transformed, winograd_scheme
from smelt.engine import as_json

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from smelt.engine import KernelSpec

_FLOAT_BYTES: Final = 4
"""Size in bytes of a float32."""


def write_output_transform(kernel: KernelSpec) -> str:
    """Return the LLVM IR that transforms products back and applies bias and epilogue.

    A chunk is one row of tiles.
    """
    return _OutputTransformWriter(kernel).write()


class _OutputTransformWriter:
    """Writes the output transform. Operands: planes, bias (if any), extras, result."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.p = PixelLoopSpec.from_spec(kernel)
        self.scheme = winograd_scheme(*kernel["scheme"])
        first = 1 + kernel["bias"]
        self.e = Emitter(kernel.symbol, first + len(self.p.extras) + 1)
        self.w = PixelLoopWriter(self.e, self.p, first)

    def write(self) -> str:
        """Write the loops over chunks, tiles and vectors of channels; return the module."""
        e, k = self.e, self.k
        filters, across, plane = self.p.channels, k["across"], k["plane"]
        with e.loop(e.begin, e.end) as chunk:
            image, row = unravel(e, chunk.index, (as_json(k["batch"]), k["down"]))
            side = self.scheme.side
            line = e.at(e.pointer(0), e.mul(image, side * side * plane * _FLOAT_BYTES))
            line = e.at(line, e.mul(row, across * filters * _FLOAT_BYTES))
            with e.loop(0, across) as column:
                tile = e.at(line, e.mul(column.index, filters * _FLOAT_BYTES))
                position = (image, row, column.index)

                def vector(
                    channel: Int,
                    masks: list[Reg | None],
                    tile: Reg = tile,
                    position: tuple[Int, Int, Int] = position,
                ) -> None:
                    self.vector(tile, position, channel, masks[0])

                self.w.channels(1, vector)
        return e.module()

    def vector(
        self, tile: Reg, position: tuple[Int, Int, Int], channel: Int, mask: Reg | None
    ) -> None:
        """Write the transform, bias, epilogue and stores of one vector of channels of a tile."""
        e, k, kind = self.e, self.k, self.w.kind
        side = self.scheme.side
        source = e.at(tile, e.mul(channel, _FLOAT_BYTES))

        def read(i: int, j: int) -> Reg:
            return load(e, kind, e.at(source, (i * side + j) * k["plane"] * _FLOAT_BYTES), mask)

        values = transformed(e, self.scheme.output, read)
        if k["bias"]:
            bias = e.load(kind, e.at(e.pointer(1), e.mul(channel, _FLOAT_BYTES)))
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
