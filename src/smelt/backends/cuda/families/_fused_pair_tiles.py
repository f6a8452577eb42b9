"""Tile candidates of fused pairs, ranked by the cost terms of single products."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Final

from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._cost_model import gpu_spec_of, tile_extent
from smelt.backends.cuda._product_costs import fused_pair_seconds
from smelt.backends.cuda._product_schedules import FusedPairShape, FusedPairTiles
from smelt.backends.cuda.families._conv_problem import required_conv
from smelt.backends.cuda.families._gemm_tiles import OWN_SHARED_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cuda._target import CudaTarget

_MAX_COLUMNS: Final = 256
"""Maximum columns of the first product in one tile, or of the second if the first is blocked.
Chosen without a measurement."""
_ROWS: Final = (16, 32, 64, 128)
"""Rows of tiles. Chosen without a measurement."""
_COLUMNS: Final = (32, 64, 128, 256)
"""Columns of tiles. Chosen without a measurement."""
_MAX_CANDIDATES: Final = 8
"""Maximum number of non-persistent candidates. Chosen without a measurement."""
_MAX_PERSISTENT_CANDIDATES: Final = 4
"""Maximum number of persistent candidates. Chosen without a measurement."""
_PERSISTENT_PENALTY: Final = 1.001
"""Factor on a hint, so that a persistent candidate ranks just after the one it borrows it from."""
_MAX_SIMILAR_CANDIDATES: Final = 2
"""Maximum number of candidates with equal tiles and warps. Chosen without a measurement."""
_FEW_WARPS: Final = 4
"""Number of warps that any number of rows supports."""
_MAX_AREA: Final = {4: 64 * 256, 8: 128 * 256}
"""Maximum elements of the larger tile, by number of warps. Chosen without a measurement."""
_WIDE_ROWS: Final = 64
"""Minimum rows of a tile for more warps, each of which needs rows of its own. On an H200 eight
warps of 64 rows took 54.9 µs where four took 31.7 (docs/lab/products-on-gpus.md), so they are not
the first guess."""
_MAX_KEPT_DEPTH: Final = 256
"""Maximum reduction depth of the first product for which pixels are kept, in elements. Chosen
without a measurement."""
_PERSISTENT_TILES: Final = ((64, 128, 4), (32, 64, 4), (64, 64, 4), (128, 64, 8))
"""Rows, columns of the first product, and warps of persistent programs, the likelier first. Chosen
without a measurement."""
_MAX_COLUMN_BLOCKS: Final = 4
"""Maximum number of column blocks of a persistent program. Chosen without a measurement."""
_MAX_WEIGHTS: Final = 1 << 16
"""Maximum number of weights that a persistent program keeps, in elements. Chosen without a
measurement."""


def fused_pair_tiles(
    pair_nodes: PairNodes, target: CudaTarget
) -> Iterator[tuple[FusedPairTiles, float]]:
    """Yield the most promising tiles with their estimated seconds, best first."""
    problem = _FusedPairProblem(pair_nodes, target)
    gpu = gpu_spec_of(target)
    ranked = [(fused_pair_seconds(problem.pair, c, gpu), c) for c in problem.choices()]
    similar: dict[tuple[int, ...], int] = {}
    best: list[tuple[FusedPairTiles, float]] = []
    for seconds, choice in sorted(ranked, key=lambda pair: pair[0]):
        kind = (*choice.tile[:2], choice.second_tile, choice.num_warps)
        similar[kind] = similar.get(kind, 0) + 1
        if similar[kind] <= _MAX_SIMILAR_CANDIDATES and len(best) < _MAX_CANDIDATES:
            best.append((choice, seconds))
    # There is no estimate for persistent programs: some are tried, and none ranks first.
    persistent_configs = (
        list(islice(problem.persistent_configs(), _MAX_PERSISTENT_CANDIDATES)) if best else []
    )
    hints = [seconds for _, seconds in (*best, best[-1])[1:]] if best else []
    best += [
        (config, _PERSISTENT_PENALTY * hints[min(k, len(hints) - 1)])
        for k, config in enumerate(persistent_configs)
    ]
    yield from sorted(best, key=lambda pair: pair[1])


class _FusedPairProblem:
    """Sizes of both products, and the tiles that fit them."""

    def __init__(self, pair_nodes: PairNodes, target: CudaTarget) -> None:
        self.shape = required_conv(pair_nodes.first).shape(target)
        self.columns = required_conv(pair_nodes.second).filter_shape[0]
        extras = pair_nodes.second.inputs[root_of(pair_nodes.second)[1] :]
        adds = any(v is not None and v.constant is None for v in extras)
        self.pair = FusedPairShape(self.shape, self.columns, adds, pair_nodes.returns_intermediate)
        self.target = target

    def choices(self) -> Iterator[FusedPairTiles]:
        """Yield every candidate that fits the shapes and the GPU."""
        shape = self.shape
        all_columns, second_tile = tile_extent(shape.columns), tile_extent(self.columns)
        steps = sorted({min(64, tile_extent(shape.run)), min(128, tile_extent(shape.run))})
        is_short = shape.depth <= _MAX_KEPT_DEPTH and not shape.windows
        for bm in _ROWS:
            if bm > tile_extent(shape.rows):
                continue
            if all_columns <= _MAX_COLUMNS:
                for bn, bk, num_stages in product(_COLUMNS, steps, (1, 2, 3, 4, 6)):
                    yield from self._fitting((bm, all_columns, bk), bn, num_stages)
            if second_tile <= _MAX_COLUMNS and is_short:
                bk = min(64, tile_extent(shape.run))
                is_even = shape.images == 1 or not (shape.run % bk or shape.depth % bk)
                for block_columns, num_stages in product(_COLUMNS, (1, 2, 3, 4)):
                    if block_columns < shape.columns and is_even:
                        yield from self._fitting((bm, block_columns, bk), second_tile, num_stages)

    def persistent_configs(self) -> Iterator[FusedPairTiles]:
        """Yield candidates whose programs keep the weights of both products."""
        shape, second_tile = self.shape, tile_extent(self.columns)
        weights = shape.columns * (shape.depth + second_tile)
        bk = min(64, tile_extent(shape.run))
        is_short = (
            shape.depth <= _MAX_KEPT_DEPTH and not shape.windows and second_tile <= _MAX_COLUMNS
        )
        if not is_short or shape.depth % bk or shape.run % bk or weights > _MAX_WEIGHTS:
            return
        for (bm, bn, num_warps), num_stages in product(_PERSISTENT_TILES, (3, 2)):
            column_blocks, rest = divmod(shape.columns, bn)
            prefetched = (num_stages - 1) * bm * (shape.depth + shape.adds * shape.columns)
            elements = weights + prefetched + bm * bn * 3 // 2
            needed_bytes = elements * shape.dtype.size_bytes + OWN_SHARED_BYTES
            programs_per_sm = min(2, self.target.shared_bytes // needed_bytes)
            if not rest and 1 < column_blocks <= _MAX_COLUMN_BLOCKS and programs_per_sm:
                programs = programs_per_sm * self.target.multiprocessors
                yield FusedPairTiles(
                    tile=(bm, bn, bk),
                    second_tile=second_tile,
                    num_warps=num_warps,
                    num_stages=num_stages,
                    programs=programs,
                    prefetches_epilogue=True,
                )

    def _fitting(
        self, tile: tuple[int, int, int], second_tile: int, num_stages: int
    ) -> Iterator[FusedPairTiles]:
        """Yield the numbers of warps for which a candidate fits."""
        bm, bn, bk = tile
        shape, needed_bytes = self.shape, self.target.shared_bytes - OWN_SHARED_BYTES
        steps = -(-shape.depth // bk) if bn >= shape.columns else -(-shape.columns // bn)
        is_piped = num_stages > 1
        if (
            second_tile > tile_extent(self.columns)
            or num_stages > steps + 1
            or is_piped != (steps > 1)
        ):
            return
        for num_warps in (4, 8):
            choice = FusedPairTiles(
                tile=tile, second_tile=second_tile, num_warps=num_warps, num_stages=num_stages
            )
            is_valid = num_warps == _FEW_WARPS or bm >= _WIDE_ROWS
            is_valid = is_valid and bm * max(bn, second_tile) <= _MAX_AREA[num_warps]
            if is_valid and self.shared_bytes(choice) <= needed_bytes:
                yield choice

    def shared_bytes(self, choice: FusedPairTiles) -> int:
        """Return the maximum shared memory of a program in bytes, on any GPU.

        If the first product is blocked, tensor cores may read the pixels (in whole steps) and the
        intermediate from shared memory, and epilogue operands may pass through it.
        """
        shape, (bm, bn, bk) = self.shape, choice.tile
        if choice.keeps_columns(self.pair):
            return choice.prefetched_bytes(self.pair, shape.depth)
        depth = -(-shape.depth // bk) * bk
        staged_bytes = bm * (depth + bn) * shape.size
        return choice.prefetched_bytes(self.pair, depth) + staged_bytes
