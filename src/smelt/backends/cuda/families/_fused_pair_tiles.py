"""Tile candidates of fused pairs, ranked by the cost terms of single products."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Final, cast

from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import (
    WARP_LANES,
    LaunchWorkload,
    gpu_spec_of,
    product_seconds,
    seconds_of,
    tile_extent,
)
from smelt.backends.cuda.families._gemm_tiles import (
    DEPENDENCY_SECONDS,
    OWN_SHARED_BYTES,
    STEP_OVERHEAD_SECONDS,
)
from smelt.backends.cuda.families.conv import product_shape
from smelt.backends.cuda.families.conv_sum import sum_shape
from smelt.ops import ConvSum
from smelt.types import fixed_extent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.ops import Conv

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
_TWO_STAGE_PENALTY: Final = 1.15
"""Additional factor on the estimate with two pipeline stages. Chosen without a measurement."""
_WHOLE_CORRECTION: Final = 1.12
"""Factor on the estimate with all columns of the first product in a tile; fitted to 24 fused pairs
on an H200, with `_BLOCKED_CORRECTION`."""
_BLOCKED_CORRECTION: Final = 1.25
"""Factor on the estimate with the first product's columns in blocks. Fitted to the same pairs as
`_WHOLE_CORRECTION`."""


@dataclass(frozen=True, slots=True)
class FusedPairTiles:
    """Parameters of a fused pair's tactic."""

    tile: tuple[int, int, int]
    """Rows, columns of the first product, and its reduction step."""
    second_tile: int
    """Columns of the second product in a tile."""
    num_warps: int
    num_stages: int
    programs: int = 0
    """Number of persistent programs that keep their weights; 0 if each program computes one
    tile."""
    prefetches_epilogue: bool = False
    split_k: int = 1
    precision: str = "ieee"


def fused_pair_tiles(
    pair_nodes: PairNodes, target: CudaTarget
) -> Iterator[tuple[FusedPairTiles, float]]:
    """Yield the most promising tiles with their estimated seconds, best first."""
    problem = _FusedPairProblem(pair_nodes, target)
    ranked = [(problem.seconds(choice), choice) for choice in problem.choices()]
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


def first_shape(pair_nodes: PairNodes, target: CudaTarget) -> GemmShape:
    """Return the shape of the first product."""
    root = root_of(pair_nodes.first)[0]
    if isinstance(root, ConvSum):
        return sum_shape(pair_nodes.first, root, target)
    return product_shape(pair_nodes.first, cast("Conv", root), target)


def second_columns(pair_nodes: PairNodes) -> int:
    """Return the number of columns of the second product."""
    return fixed_extent(required_input(pair_nodes.second, 1).tensor.shape[0])


class _FusedPairProblem:
    """Shapes of both products, and the estimates of their tiles."""

    def __init__(self, pair_nodes: PairNodes, target: CudaTarget) -> None:
        self.shape, self.columns = first_shape(pair_nodes, target), second_columns(pair_nodes)
        self.returns_intermediate, self.target, self.gpu = (
            pair_nodes.returns_intermediate,
            target,
            gpu_spec_of(target),
        )
        extras = pair_nodes.second.inputs[root_of(pair_nodes.second)[1] :]
        self.adds = any(v is not None and v.constant is None for v in extras)
        """Whether the second product's epilogue reads a non-constant tensor."""

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
                    (bm, bn, bk),
                    second_tile,
                    num_warps,
                    num_stages,
                    programs,
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
            choice = FusedPairTiles(tile, second_tile, num_warps, num_stages)
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
        if bn >= shape.columns:
            return self._prefetched_bytes(choice, shape.depth)
        depth = -(-shape.depth // bk) * bk
        staged_bytes = bm * (depth + bn) * shape.dtype.size_bytes
        return self._prefetched_bytes(choice, depth) + staged_bytes

    def _prefetched_bytes(self, choice: FusedPairTiles, depth: int) -> int:
        """Return the bytes of prefetched data and the intermediate, as used in the fit."""
        shape, (bm, bn, bk) = self.shape, choice.tile
        if bn >= shape.columns:
            elements = choice.num_stages * (bm + bn) * bk + bn * (choice.second_tile + bm)
        else:
            step = bn * (depth + choice.second_tile) + bm * bn * shape.adds
            elements = choice.num_stages * step + bm * bn
        return elements * shape.dtype.size_bytes

    def _registers(self, choice: FusedPairTiles) -> float:
        """Return the registers that a thread needs: both sums, epilogue operands, addresses."""
        bm, bn, _ = choice.tile
        accumulators = bm * (bn * (1 + self.shape.adds / 2) + choice.second_tile)
        return 40 + 1.1 * accumulators / (choice.num_warps * WARP_LANES)

    def seconds(self, choice: FusedPairTiles) -> float:
        """Return the estimated time of a launch in seconds."""
        shape, size, second_tile = self.shape, self.shape.dtype.size_bytes, choice.second_tile
        (bm, bn, bk), steps = choice.tile, -(-self.shape.depth // choice.tile[2])
        is_whole = bn >= shape.columns
        loop_steps, depth = (steps, bk) if is_whole else (-(-shape.columns // bn), shape.depth + bn)
        down, across = -(-shape.rows // bm), -(-self.columns // second_tile)
        step_bytes, epilogue_bytes = self._bytes(choice, steps, across)
        pixel_bytes = 0 if is_whole else bm * shape.depth * size
        source = shape.image or shape.rows * shape.depth
        row_elements = shape.columns * (self.returns_intermediate + shape.adds) + self.columns * (
            1 + self.adds
        )
        work = LaunchWorkload(
            programs=down * across,
            num_warps=choice.num_warps,
            registers=self._registers(choice),
            shared_bytes=self._prefetched_bytes(choice, shape.depth),
            steps=loop_steps,
            num_stages=choice.num_stages,
            step_seconds=self._step_seconds(choice, steps),
            step_overhead_seconds=STEP_OVERHEAD_SECONDS * depth,
            dependency_seconds=DEPENDENCY_SECONDS * depth,
            step_bytes=step_bytes,
            epilogue_bytes=epilogue_bytes,
            accumulators=bm * (second_tile + bn) / (choice.num_warps * WARP_LANES),
            l2_read_bytes=float(
                down * across * (loop_steps * step_bytes + epilogue_bytes + pixel_bytes)
            ),
            source_bytes=float(size * source),
            moved_bytes=float(size * (source + shape.rows * row_elements)),
        )
        correction = _WHOLE_CORRECTION if is_whole else _BLOCKED_CORRECTION
        # With two stages, the next step's loads are issued only after the previous step is done.
        return (
            seconds_of(work, self.gpu)
            * correction
            * (_TWO_STAGE_PENALTY if choice.num_stages == 2 else 1.0)
        )

    def _step_seconds(self, choice: FusedPairTiles, steps: int) -> float:
        """Return the time that a step's products keep a multiprocessor busy, in seconds."""
        (bm, bn, bk), second_tile, dtype = choice.tile, choice.second_tile, self.shape.dtype
        first = product_seconds((bm, bn, bk), choice.num_warps, dtype, "ieee", self.gpu)
        second = product_seconds((bm, second_tile, bn), choice.num_warps, dtype, "ieee", self.gpu)
        return first + second / steps if bn >= self.shape.columns else steps * first + second

    def _bytes(self, choice: FusedPairTiles, steps: int, across: int) -> tuple[float, float]:
        """Return the bytes that a step loads, and the bytes of a program's epilogue."""
        shape, (bm, bn, bk), second_tile = self.shape, choice.tile, choice.second_tile
        is_whole, size = bn >= shape.columns, self.shape.dtype.size_bytes
        if is_whole:
            step = bk * (bm + bn) + bn * second_tile / steps
        else:
            step = bn * (shape.depth + second_tile + bm * shape.adds)
        epilogue_elements = (
            bm * second_tile * (1 + self.adds)
            + bm * shape.columns * self.returns_intermediate / across
        )
        return size * step, size * (epilogue_elements + bm * shape.columns * shape.adds * is_whole)
