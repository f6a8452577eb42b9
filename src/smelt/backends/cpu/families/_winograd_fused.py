"""Winograd's three launches in one, a few rows of tiles at a time.

Where the transformed weights fit into the second cache, a worker transforms the tiles of some rows,
multiplies them and transforms back, all in its own scratch memory: planes never reach other
workers' caches, and nobody waits in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu.families._subkernels import call_subkernel, link_subkernels
from smelt.engine import KernelSpec, Launch, as_json, parameters
from smelt.types import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.engine import View
    from smelt.types import Dim

FUSED_COST_RATIO: Final = 0.95
"""The time, relative to three launches, where workers' caches are near each other."""
_WEIGHTS_BYTES: Final = 640 << 10
"""Weights that stay in the second cache beside the planes of some rows of tiles."""
_PLANES_BYTES: Final = 288 << 10
_LEAST_CHUNKS: Final = 6


@dataclass(frozen=True, slots=True)
class TileRowLayout:
    """The place of planes in scratch memory, in bytes."""

    fused_rows: int
    """Rows of tiles of a chunk, of which an image has a multiple."""
    down: int
    """Rows of tiles of an image."""
    image_bytes: tuple[int, int]
    """All planes of transformed inputs, and all those of products."""
    row_bytes: tuple[int, int]
    """One row of tiles of one plane, of either."""


def choose_fused_rows(
    down: int, weights_bytes: int, planes_bytes: Callable[[int], int]
) -> tuple[int, ...]:
    """Rows of tiles that may be worked on at once, best guess first; 0 for three launches.

    Args:
        down: rows of tiles of an image.
        weights_bytes: size of the transformed weights.
        planes_bytes: size of the planes of so many rows.
    """
    if weights_bytes > _WEIGHTS_BYTES:
        return (0,)
    divisors = (n for n in range(down // _LEAST_CHUNKS, 0, -1) if down % n == 0)
    room = max(_PLANES_BYTES, _WEIGHTS_BYTES - weights_bytes)
    best = next((n for n in divisors if planes_bytes(n) <= room), 0)
    return (best, 0) if best else (0,)


def fuse_launches(
    launches: Sequence[Launch], tiles: TileRowLayout, views: Sequence[View], batch: Dim
) -> Launch:
    """One launch for the transform, the product and the transform back.

    Args:
        launches: the three, as they would work on planes of ``tiles.fused_rows`` rows.
        tiles: where planes lie.
        views: input, packed weights, what the transform back reads besides planes, result.
        batch: number of images.
    """
    first, products, last = launches
    kernel = KernelSpec(
        first.kernel.family,
        parameters(
            kernel="fused_rows",
            stages=tuple(launch.kernel.parameters for launch in launches),
            operands=tuple(len(launch.operands) for launch in launches),
            scalars=tuple(len(launch.scalars) for launch in launches),
            chunks=as_json(products.chunks),
            tiles=(tiles.fused_rows, tiles.down, tiles.image_bytes, tiles.row_bytes),
        ),
    )
    return Launch(
        kernel,
        tuple(views),
        (len(views) - 1,),
        (*first.scalars, *products.scalars, *last.scalars),
        batch * ceil_div(tiles.down, tiles.fused_rows),
        scratch_bytes=sum(tiles.image_bytes),
    )


def write_fused_kernel(kernel: KernelSpec, generate: Callable[[KernelSpec], str]) -> str:
    """The code of a joined launch; ``generate`` writes that of its parts."""
    stages: Any = as_json(kernel["stages"])
    specs = [KernelSpec(kernel.family, stage) for stage in stages]
    texts = [generate(spec) for spec in specs]
    return link_subkernels(_FusedWriter(kernel, [spec.symbol for spec in specs]).write(), texts)


class _FusedWriter:
    """Writes the loop over chunks, which calls the parts."""

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
        """Where planes would start that held every row of every image, this chunk's at ``at``."""
        e, t = self.e, self.tiles
        before = e.mul(image, t.image_bytes[part])
        before = e.add(before, e.mul(row, t.row_bytes[part]))
        return e.at(at, e.sub(0, before))

    def call(
        self, part: int, frames: Sequence[Reg], operands: Sequence[Reg], chunks: tuple[Int, Int]
    ) -> None:
        e = self.e
        before = sum(self.scalars[:part])
        scalars = [e.i64(e.extent(("arg", before + k))) for k in range(self.scalars[part])]
        call_subkernel(e, self.symbols[part], frames[part], (*operands, *scalars), chunks)
