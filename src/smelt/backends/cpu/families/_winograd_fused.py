"""Winograd's three launches fused into one kernel that handles a few rows of tiles at a time.

If the transformed weights fit into L2, a worker transforms the tiles of some rows, multiplies them
and transforms back, all in its own scratch memory. Planes then never move between the caches of
different cores, and workers do not wait for each other between the stages.
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
