"""Choice of register tiles, chunks and work splits by an analytical processor model.

The model only has to rank candidates: the tuner times those that it ranks first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.engine import Json, Parameters, parameters

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.types import Dim

CYCLES_PER_SECOND: Final = 4.0e9
"""Clock rate assumed by the cost estimates, in Hz. Chosen without a measurement; the development
machine reaches 286 GFLOP/s, which is 4.5 GHz at 64 flop per cycle."""
MEMORY_BYTES_PER_SECOND: Final = 2.5e10
"""Memory bandwidth per thread assumed by the cost estimates, in bytes per second. Measured with one
thread of the development machine."""
_L1_BYTES: Final = 32 << 10
"""Size in bytes of the L1 data cache that the model assumes. Chosen without a measurement."""
_L2_BYTES: Final = 512 << 10
"""L2 bytes that a kernel may occupy: half of the 1 MiB that current cores have."""
_L2_BYTES_PER_CYCLE: Final = 24
"""Bandwidth from L2 to the registers that the model assumes, in bytes per cycle. Chosen without a
measurement."""
_CHUNK_FLOPS: Final = 1 << 20
"""Least work per chunk in flops, about 4 microseconds: enough to repay handing a chunk to a
worker. Larger chunks leave a worker idle at the end of small layers: with 4 << 20 MobileNetV2
takes an eighth longer on two threads (docs/lab/threads.md)."""
_TARGET_CHUNKS: Final = 24
"""Number of chunks per launch that `choose_blocks` aims for on large problems. Twice and four times
as many change ResNet-50 and SqueezeNet by at most 0.3 % (docs/lab/convolutions.md)."""
_MAX_HIDDEN_STORES: Final = 14
"""Vector stores at the end of a tile that overlap with the next tile's sums. More stores stall:
28 cost 45 cycles, 14 cost 10 (docs/lab/mobile-networks.md)."""
_STALL_CYCLES: Final = 2.5
"""Cycles that each store beyond `_MAX_HIDDEN_STORES` costs, fitted to the same measurement: (45
- 10) / (28 - 14)."""
_TILE_OVERHEAD: Final = 0.5
"""Fixed cost of a tile, in pixels of work. Chosen without a measurement."""
_FEW_FILTERS: Final = 512
"""Below this number of filters there are too few panels to keep all workers busy. Chosen without a
measurement."""


@dataclass(frozen=True, slots=True)
class TilingProblem:
    """Extents of a sum over packed panels; an extent known only at run time is None."""

    images: int | None
    groups: int
    height: int | None
    width: int | None
    filters: int
    """Number of output channels per group."""
    depth: int
    """Number of products per result: taps times input channels of a group."""

    @property
    def pixels(self) -> int:
        """Pixels of an image; unknown extents count as 14 rows and 56 columns."""
        return (self.height or 14) * (self.width or 56)


def static_extent(extent: Dim) -> int | None:
    """Return the extent if it is known at build time, else None.

    An extent of 0 is planned as 1: its launch has no chunks, so the plan is never executed.
    """
    return max(1, extent) if isinstance(extent, int) else None


def register_tiles(target: CpuTarget) -> tuple[tuple[int, int], ...]:
    """Return (pixels, vectors) of the register tiles that fit the target, best guess first.

    The accumulators (pixels x vectors), one vector of weights each and a broadcast input element
    must fit into the 32 registers of AVX-512 and AArch64 or the 16 of AVX2 and SSE.
    """
    if target.vector_bits == 512:
        return ((8, 2), (14, 2), (9, 3), (6, 4), (14, 1), (28, 1))
    if target.architecture == "aarch64":
        return ((8, 3), (6, 4), (14, 2))
    return ((6, 2), (4, 3), (12, 1))


def fitting_tiles(problem: TilingProblem, target: CpuTarget) -> Iterator[tuple[int, int]]:
    """Yield the register tiles whose vectors all have filters, and several where one is full."""
    lanes = target.vector_bits // 32
    for budget, vectors in register_tiles(target):
        if (vectors - 1) * lanes < problem.filters and (vectors > 1 or problem.filters <= lanes):
            yield budget, vectors


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tile of registers, a split of the work, and the estimated time."""

    seconds: float
    pixels: int
    vectors: int
    parallel_split: str

    def options(self, lanes: int, **others: Json) -> Parameters:
        """Return the options of a tactic with this tiling."""
        return parameters(
            lanes=lanes,
            vectors=self.vectors,
            pixels=self.pixels,
            parallel_split=self.parallel_split,
            **others,
        )


def ranked_tilings(
    problem: TilingProblem, a_bytes: int, target: CpuTarget, count: int
) -> list[Tiling]:
    """Return the ``count`` tilings and splits with the least estimated time, the best first.

    ``a_bytes`` is the size of the first factor.
    """
    tilings: list[Tiling] = []
    for budget, vectors in fitting_tiles(problem, target):
        tile = choose_tile(problem, budget, vectors)
        seconds = estimate_seconds(problem, tile, vectors, target)
        # Splits come best guess first: each later one counts as 10 % slower.
        tilings += [
            Tiling(seconds * (1 + 0.1 * penalty), budget, vectors, parallel_split)
            for penalty, parallel_split in enumerate(parallel_splits(problem, a_bytes))
        ]
    return sorted(tilings, key=lambda tiling: tiling.seconds)[:count]


def choose_tile(problem: TilingProblem, budget: int, vectors: int) -> tuple[int, int]:
    """Return the rows and columns of the register tile that wastes the least work.

    Args:
        problem: extents of the sum.
        budget: largest number of pixels of a tile.
        vectors: vectors of channels of a tile.
    """
    height, width = problem.height, problem.width
    if width is None:
        return (1, budget)
    if height is None or width > budget // 2:
        return (1, _least_waste(width, budget))
    options = [(rows, width) for rows in range(1, budget // width + 1) if rows <= height]
    return min(options, key=lambda t: _cycles_per_element(problem, t, vectors))


def even_size(extent: int, budget: int) -> int:
    """Return the size up to ``budget`` of equal tiles that cover ``extent`` with least overlap."""
    count = -(-extent // budget)
    return max(1, -(-extent // count))


def _least_waste(extent: int, budget: int) -> int:
    """Return the tile size near ``budget`` whose tiles overlap least.

    The last tile of a row overlaps the one before it, which repeats work: 128 columns are cut into
    16 tiles of 8 rather than 15 of 9.
    """
    sizes = range(max(1, budget * 3 // 4), budget + 1)
    best = min(sizes, key=lambda size: -(-extent // size) * (size + _TILE_OVERHEAD))
    return even_size(extent, best)


def _tiles(problem: TilingProblem, tile: tuple[int, int]) -> int:
    """Return the number of tiles of an image for one panel."""
    height, width = problem.height or 14, problem.width or 56
    return -(-height // tile[0]) * -(-width // tile[1])


def _cycles_per_element(problem: TilingProblem, tile: tuple[int, int], vectors: int) -> float:
    """Return the cycles of one step of the sum, over all tiles of a panel.

    A step is bound by multiply-adds (two per cycle), by loads (two per cycle), by the latency of
    the accumulators if there are fewer than 8, and by streaming the panel from L2 if L1 cannot hold
    it.
    """
    pixels = tile[0] * tile[1]
    panel_bytes = problem.depth * vectors * 64
    streamed = vectors * 64 / _L2_BYTES_PER_CYCLE
    cycles = max(pixels * vectors / 2, (pixels + vectors) / 2, 4.0 if pixels * vectors < 8 else 0)
    if panel_bytes > _L1_BYTES:
        cycles = max(cycles, streamed) + 0.25 * streamed
    return cycles * _tiles(problem, tile)


def estimate_seconds(
    problem: TilingProblem, tile: tuple[int, int], vectors: int, target: CpuTarget
) -> float:
    """Return the estimated seconds of the sum on one thread, weights and result included."""
    lanes = target.vector_bits // 32
    steps = -(-problem.filters // (vectors * lanes)) * problem.depth * problem.groups
    images = problem.images or 1
    stall = _STALL_CYCLES * max(0, tile[0] * tile[1] * vectors - _MAX_HIDDEN_STORES) / problem.depth
    cycles = _cycles_per_element(problem, tile, vectors) + stall * _tiles(problem, tile)
    compute = cycles * steps * images / CYCLES_PER_SECOND
    weights = problem.filters * problem.depth * problem.groups * 4
    outputs = problem.pixels * problem.filters * problem.groups * images * 4
    return compute + (0.3 * weights + outputs) / MEMORY_BYTES_PER_SECOND


def parallel_splits(problem: TilingProblem, a_bytes: int) -> tuple[str, ...]:
    """Return ways to cut the work into chunks, best guess first.

    "rows" gives each chunk all panels of some rows, which reads all weights per chunk: it is first
    if the weights fit into L2. "panels" gives each chunk some panels of the whole image, which
    reads the whole input per chunk. "both" cuts both axes. ``a_bytes`` is the size of one input
    image.
    """
    weights = problem.filters * problem.depth * 4
    if problem.width is None and problem.height is not None:
        return ("both", "panels")
    if weights <= _L2_BYTES:
        return ("rows", "both")
    if problem.filters < _FEW_FILTERS:
        return ("both", "panels")
    return ("panels", "both") if a_bytes <= _L2_BYTES else ("both", "panels")


def choose_blocks(
    problem: TilingProblem, tile: tuple[int, int], vectors: int, lanes: int, parallel_split: str
) -> tuple[int, int, int]:
    """Return the rows of tiles, columns of tiles and panels of a chunk.

    A chunk has at least `_CHUNK_FLOPS` of work, and more if the launch would have more than
    `_TARGET_CHUNKS` chunks. ``lanes`` and ``vectors`` give the width of a panel.
    """
    down = -(-(problem.height or 14) // tile[0])
    across = -(-(problem.width or 56) // tile[1])
    panels = -(-problem.filters // (vectors * lanes))
    row_flops = across * tile[0] * tile[1] * 2 * problem.depth * vectors * lanes
    panel_flops = down * row_flops
    total_flops = panel_flops * panels * problem.groups * (problem.images or 1)
    chunk_flops = max(_CHUNK_FLOPS, total_flops // _TARGET_CHUNKS)
    unlimited = 1 << 30
    if parallel_split == "panels":
        count = min(panels, max(1, chunk_flops // panel_flops))
        return (unlimited, unlimited, even_size(panels, count))
    # Panels of at most 256 KiB, half of _L2_BYTES; a vector has 64 bytes.
    panels_per_chunk = (
        panels
        if parallel_split == "rows"
        else min(panels, max(1, 262144 // (problem.depth * vectors * 64)))
    )
    if down > 1 or problem.height is None:
        rows = max(1, min(down, chunk_flops // (row_flops * panels_per_chunk)))
        return (even_size(down, rows), unlimited, panels_per_chunk)
    tile_flops = row_flops // across
    columns = max(1, min(across, chunk_flops // (tile_flops * panels_per_chunk)))
    return (unlimited, even_size(across, columns), panels_per_chunk)
