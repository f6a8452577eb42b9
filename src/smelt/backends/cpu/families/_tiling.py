"""Choosing tiles and chunks: a model of the processor, good enough to rank candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.types import Dim

CYCLES_PER_SECOND: Final = 4.0e9
MEMORY_BYTES_PER_SECOND: Final = 2.5e10
_L1_BYTES: Final = 32 << 10
_L2_BYTES: Final = 512 << 10
"""What a kernel may keep in the second level: half of what processors have today."""
_L2_BYTES_PER_CYCLE: Final = 24
_CHUNK_FLOPS: Final = 1 << 20
"""Work that is worth the hand-over to a worker: some 4 microseconds. Larger chunks left a worker
idle at the end of small layers: MobileNetV2 took an eighth longer on two threads with 4 << 20."""
_TARGET_CHUNKS: Final = 24
_MAX_HIDDEN_STORES: Final = 14
"""Stores of a tile's results that go on beside the next tile's sums. More in one go stall them."""
_STALL_CYCLES: Final = 2.5
"""What each further store costs."""
_TILE_OVERHEAD: Final = 0.5
"""What a tile costs beside its pixels, in pixels."""
_FEW_FILTERS: Final = 512
"""Filters that make too few panels to keep many workers busy."""


@dataclass(frozen=True, slots=True)
class TilingProblem:
    """A sum over panels, as far as it is known: None for extents known at run time."""

    images: int | None
    groups: int
    height: int | None
    width: int | None
    filters: int
    depth: int

    @property
    def pixels(self) -> int:
        """Pixels of an image, guessed where unknown."""
        return (self.height or 14) * (self.width or 56)


def static_extent(extent: Dim) -> int | None:
    """The extent, when it is known; an empty one is planned like one of 1, and has no chunk."""
    return max(1, extent) if isinstance(extent, int) else None


def register_tiles(target: CpuTarget) -> tuple[tuple[int, int], ...]:
    """(pixels, vectors) of the tiles that the target's registers hold, best first."""
    if target.vector_bits == 512:
        return ((8, 2), (14, 2), (9, 3), (6, 4), (14, 1), (28, 1))
    if target.architecture == "aarch64":
        return ((8, 3), (6, 4), (14, 2))
    return ((6, 2), (4, 3), (12, 1))


def choose_tile(problem: TilingProblem, budget: int, vectors: int) -> tuple[int, int]:
    """Rows and columns of the tile of at most ``budget`` pixels that wastes least."""
    height, width = problem.height, problem.width
    if width is None:
        return (1, budget)
    if height is None or width > budget // 2:
        return (1, _least_waste(width, budget))
    options = [(rows, width) for rows in range(1, budget // width + 1) if rows <= height]
    return min(options, key=lambda t: _cycles_per_element(problem, t, vectors))


def _even(extent: int, budget: int) -> int:
    """Tiles of equal size overlap least."""
    count = -(-extent // budget)
    return max(1, -(-extent // count))


def _least_waste(extent: int, budget: int) -> int:
    """The size of tiles of nearly ``budget`` that overlap least: 128 is 16 x 8, not 15 x 9."""
    sizes = range(max(1, budget * 3 // 4), budget + 1)
    best = min(sizes, key=lambda size: -(-extent // size) * (size + _TILE_OVERHEAD))
    return _even(extent, best)


def _tiles(problem: TilingProblem, tile: tuple[int, int]) -> int:
    height, width = problem.height or 14, problem.width or 56
    return -(-height // tile[0]) * -(-width // tile[1])


def _cycles_per_element(problem: TilingProblem, tile: tuple[int, int], vectors: int) -> float:
    """Cycles of one step of the sum, over all tiles of a panel."""
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
    """Time of the whole sum on one thread."""
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
    """Ways to cut the work into chunks, best guess first: by rows, by panels, or both."""
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
    """Rows of tiles, columns of tiles and panels of a chunk."""
    down = -(-(problem.height or 14) // tile[0])
    across = -(-(problem.width or 56) // tile[1])
    panels = -(-problem.filters // (vectors * lanes))
    row_flops = across * tile[0] * tile[1] * 2 * problem.depth * vectors * lanes
    panel_flops = down * row_flops
    total = panel_flops * panels * problem.groups * (problem.images or 1)
    wanted = max(_CHUNK_FLOPS, total // _TARGET_CHUNKS)
    unlimited = 1 << 30
    if parallel_split == "panels":
        count = min(panels, max(1, wanted // panel_flops))
        return (unlimited, unlimited, _even(panels, count))
    kept = (
        panels
        if parallel_split == "rows"
        else min(panels, max(1, 262144 // (problem.depth * vectors * 64)))
    )
    if down > 1 or problem.height is None:
        rows = max(1, min(down, wanted // (row_flops * kept)))
        return (_even(down, rows), unlimited, kept)
    tile_flops = row_flops // across
    columns = max(1, min(across, wanted // (tile_flops * kept)))
    return (unlimited, _even(across, columns), kept)
