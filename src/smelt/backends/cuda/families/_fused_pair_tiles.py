"""Tiles for two products in one launch: which are worth trying, by the terms of single products."""

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
from smelt.ops.conv_sum import ConvSum
from smelt.types import fixed_extent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.ops.conv import Conv

_MAX_COLUMNS: Final = 256
"""Of the first product whole, or of the second where the first comes in stretches."""
_ROWS: Final = (16, 32, 64, 128)
_COLUMNS: Final = (32, 64, 128, 256)
_MAX_CANDIDATES: Final = 8
_MAX_PERSISTENT_CANDIDATES: Final = 4
_PERSISTENT_PENALTY: Final = 1.001
_MAX_SIMILAR_CANDIDATES: Final = 2
"""Of those with tiles and warps alike so many are kept."""
_FEW_WARPS: Final = 4
_MAX_AREA: Final = {4: 64 * 256, 8: 128 * 256}
"""Elements of the larger tile for a number of warps."""
_WIDE_ROWS: Final = 64
"""From which on more warps have rows of their own."""
_MAX_HELD: Final = 256
"""Elements of the first sum for which pixels are held."""
_PERSISTENT_TILES: Final = ((64, 128, 4), (32, 64, 4), (64, 64, 4), (128, 64, 8))
"""Rows, columns of the first product, and warps of programs that walk, the likelier first."""
_MAX_COLUMN_BLOCKS: Final = 4
_MAX_WEIGHTS: Final = 1 << 16
"""Elements that such a program holds."""
_TWO_STAGE_PENALTY: Final = 1.15
"""How much longer still with two stages."""
_WHOLE_CORRECTION: Final = 1.12
_BLOCKED_CORRECTION: Final = 1.25
"""How much longer chains take than those terms say: of 24 on an H200, with the first product whole,
and in stretches."""


@dataclass(frozen=True, slots=True)
class FusedPairTiles:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    """Rows, columns of the first product, steps of its sum."""
    second_tile: int
    """Columns of the second product."""
    num_warps: int
    num_stages: int
    programs: int = 0
    """How many walk down the rows, with weights that they hold; 0 where each does one tile."""
    prefetches_epilogue: bool = False
    split_k: int = 1
    precision: str = "ieee"


def fused_pair_tiles(
    pair_nodes: PairNodes, target: CudaTarget
) -> Iterator[tuple[FusedPairTiles, float]]:
    """Yield the most promising tiles with their estimated seconds, best first."""
    both = _FusedPairProblem(pair_nodes, target)
    found = [(both.seconds(choice), choice) for choice in both.choices()]
    kept: dict[tuple[int, ...], int] = {}
    best: list[tuple[FusedPairTiles, float]] = []
    for seconds, choice in sorted(found, key=lambda pair: pair[0]):
        kind = (*choice.tile[:2], choice.second_tile, choice.num_warps)
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= _MAX_SIMILAR_CANDIDATES and len(best) < _MAX_CANDIDATES:
            best.append((choice, seconds))
    # Of those that walk no estimate is known: some are tried, and none is the first.
    persistent_configs = (
        list(islice(both.persistent_configs(), _MAX_PERSISTENT_CANDIDATES)) if best else []
    )
    hints = [seconds for _, seconds in (*best, best[-1])[1:]] if best else []
    best += [
        (walk, _PERSISTENT_PENALTY * hints[min(k, len(hints) - 1)])
        for k, walk in enumerate(persistent_configs)
    ]
    yield from sorted(best, key=lambda pair: pair[1])


def first_shape(pair_nodes: PairNodes, target: CudaTarget) -> GemmShape:
    """The first product."""
    root = root_of(pair_nodes.first)[0]
    if isinstance(root, ConvSum):
        return sum_shape(pair_nodes.first, root, target)
    return product_shape(pair_nodes.first, cast("Conv", root), target)


def second_columns(pair_nodes: PairNodes) -> int:
    """Columns of the second product."""
    return fixed_extent(required_input(pair_nodes.second, 1).tensor.shape[0])


class _FusedPairProblem:
    """Both products."""

    def __init__(self, pair_nodes: PairNodes, target: CudaTarget) -> None:
        self.shape, self.columns = first_shape(pair_nodes, target), second_columns(pair_nodes)
        self.returns_intermediate, self.target, self.gpu = (
            pair_nodes.returns_intermediate,
            target,
            gpu_spec_of(target),
        )
        extras = pair_nodes.second.inputs[root_of(pair_nodes.second)[1] :]
        self.adds = any(v is not None and v.constant is None for v in extras)
        """Whether the second's epilogue reads a tensor."""

    def choices(self) -> Iterator[FusedPairTiles]:
        """Every choice that fits."""
        shape = self.shape
        whole, then = tile_extent(shape.columns), tile_extent(self.columns)
        steps = sorted({min(64, tile_extent(shape.run)), min(128, tile_extent(shape.run))})
        is_short = shape.depth <= _MAX_HELD and not shape.windows
        for bm in _ROWS:
            if bm > tile_extent(shape.rows):
                continue
            if whole <= _MAX_COLUMNS:
                for bn, bk, num_stages in product(_COLUMNS, steps, (1, 2, 3, 4, 6)):
                    yield from self._fitting((bm, whole, bk), bn, num_stages)
            if then <= _MAX_COLUMNS and is_short:
                bk = min(64, tile_extent(shape.run))
                is_even = shape.images == 1 or not (shape.run % bk or shape.depth % bk)
                for own, num_stages in product(_COLUMNS, (1, 2, 3, 4)):
                    if own < shape.columns and is_even:
                        yield from self._fitting((bm, own, bk), then, num_stages)

    def persistent_configs(self) -> Iterator[FusedPairTiles]:
        """Programs that hold the weights of both products, and go down the rows."""
        shape, then = self.shape, tile_extent(self.columns)
        weights = shape.columns * (shape.depth + then)
        bk = min(64, tile_extent(shape.run))
        is_short = shape.depth <= _MAX_HELD and not shape.windows and then <= _MAX_COLUMNS
        if not is_short or shape.depth % bk or shape.run % bk or weights > _MAX_WEIGHTS:
            return
        for (bm, bn, num_warps), num_stages in product(_PERSISTENT_TILES, (3, 2)):
            column_blocks, rest = divmod(shape.columns, bn)
            ahead = (num_stages - 1) * bm * (shape.depth + shape.adds * shape.columns)
            elements = weights + ahead + bm * bn * 3 // 2
            needed_bytes = elements * shape.dtype.size_bytes + OWN_SHARED_BYTES
            programs_per_sm = min(2, self.target.shared_bytes // needed_bytes)
            if not rest and 1 < column_blocks <= _MAX_COLUMN_BLOCKS and programs_per_sm:
                programs = programs_per_sm * self.target.multiprocessors
                yield FusedPairTiles(
                    (bm, bn, bk), then, num_warps, num_stages, programs, prefetches_epilogue=True
                )

    def _fitting(
        self, tile: tuple[int, int, int], second_tile: int, num_stages: int
    ) -> Iterator[FusedPairTiles]:
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
            is_apt = num_warps == _FEW_WARPS or bm >= _WIDE_ROWS
            is_apt = is_apt and bm * max(bn, second_tile) <= _MAX_AREA[num_warps]
            if is_apt and self.shared_bytes(choice) <= needed_bytes:
                yield choice

    def shared_bytes(self, choice: FusedPairTiles) -> int:
        """What a program needs of shared memory at most, on any GPU.

        Where the first product comes in stretches, tensor cores may take pixels, which are in whole
        steps, and what is between the products from there; what is added passes through it.
        """
        shape, (bm, bn, bk) = self.shape, choice.tile
        if bn >= shape.columns:
            return self._prefetched_bytes(choice, shape.depth)
        depth = -(-shape.depth // bk) * bk
        passing = bm * (depth + bn) * shape.dtype.size_bytes
        return self._prefetched_bytes(choice, depth) + passing

    def _prefetched_bytes(self, choice: FusedPairTiles, depth: int) -> int:
        """What is asked for ahead, and what is between the products: what costs were fitted by."""
        shape, (bm, bn, bk) = self.shape, choice.tile
        if bn >= shape.columns:
            elements = choice.num_stages * (bm + bn) * bk + bn * (choice.second_tile + bm)
        else:
            step = bn * (depth + choice.second_tile) + bm * bn * shape.adds
            elements = choice.num_stages * step + bm * bn
        return elements * shape.dtype.size_bytes

    def _registers(self, choice: FusedPairTiles) -> float:
        """That a thread would like to have: both sums, what is added, addresses."""
        bm, bn, _ = choice.tile
        accumulators = bm * (bn * (1 + self.shape.adds / 2) + choice.second_tile)
        return 40 + 1.1 * accumulators / (choice.num_warps * WARP_LANES)

    def seconds(self, choice: FusedPairTiles) -> float:
        """What a launch takes."""
        shape, size, then = self.shape, self.shape.dtype.size_bytes, choice.second_tile
        (bm, bn, bk), steps = choice.tile, -(-self.shape.depth // choice.tile[2])
        is_whole = bn >= shape.columns
        turns, depth = (steps, bk) if is_whole else (-(-shape.columns // bn), shape.depth + bn)
        down, across = -(-shape.rows // bm), -(-self.columns // then)
        step_bytes, epilogue_bytes = self._bytes(choice, steps, across)
        first = 0 if is_whole else bm * shape.depth * size
        source = shape.image or shape.rows * shape.depth
        moved = shape.columns * (self.returns_intermediate + shape.adds) + self.columns * (
            1 + self.adds
        )
        work = LaunchWorkload(
            programs=down * across,
            num_warps=choice.num_warps,
            registers=self._registers(choice),
            shared_bytes=self._prefetched_bytes(choice, shape.depth),
            steps=turns,
            num_stages=choice.num_stages,
            step_seconds=self._busy(choice, steps),
            step_overhead_seconds=STEP_OVERHEAD_SECONDS * depth,
            dependency_seconds=DEPENDENCY_SECONDS * depth,
            step_bytes=step_bytes,
            epilogue_bytes=epilogue_bytes,
            accumulators=bm * (then + bn) / (choice.num_warps * WARP_LANES),
            l2_read_bytes=float(down * across * (turns * step_bytes + epilogue_bytes + first)),
            source_bytes=float(size * source),
            moved_bytes=float(size * (source + shape.rows * moved)),
        )
        longer = _WHOLE_CORRECTION if is_whole else _BLOCKED_CORRECTION
        # With two stages the compiler asks for the next step when the one before is done.
        return (
            seconds_of(work, self.gpu)
            * longer
            * (_TWO_STAGE_PENALTY if choice.num_stages == 2 else 1.0)
        )

    def _busy(self, choice: FusedPairTiles, steps: int) -> float:
        """What a step's products keep a multiprocessor busy."""
        (bm, bn, bk), then, dtype = choice.tile, choice.second_tile, self.shape.dtype
        first = product_seconds((bm, bn, bk), choice.num_warps, dtype, "ieee", self.gpu)
        second = product_seconds((bm, then, bn), choice.num_warps, dtype, "ieee", self.gpu)
        return first + second / steps if bn >= self.shape.columns else steps * first + second

    def _bytes(self, choice: FusedPairTiles, steps: int, across: int) -> tuple[float, float]:
        """What a step asks for, and what a program reads and writes at its end."""
        shape, (bm, bn, bk), then = self.shape, choice.tile, choice.second_tile
        is_whole, size = bn >= shape.columns, self.shape.dtype.size_bytes
        if is_whole:
            step = bk * (bm + bn) + bn * then / steps
        else:
            step = bn * (shape.depth + then + bm * shape.adds)
        end = bm * then * (1 + self.adds) + bm * shape.columns * self.returns_intermediate / across
        return size * step, size * (end + bm * shape.columns * shape.adds * is_whole)
