"""Tiles for two products in one launch: which are worth trying, by the terms of single products."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Final, cast

from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of
from smelt.backends.cuda._costs import (
    WARP_LANES,
    Work,
    gpu_of,
    product_seconds,
    seconds_of,
    tile_extent,
)
from smelt.backends.cuda.families._tiles import CHAIN_SECONDS, OWN_SHARED_BYTES, TURN_SECONDS
from smelt.backends.cuda.families.conv import product_shape
from smelt.backends.cuda.families.conv_sum import sum_shape
from smelt.ops.conv_sum import ConvSum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._links import Links
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._tiles import Shape
    from smelt.ops.conv import Conv

_MOST_COLUMNS: Final = 256
"""Of the first product whole, or of the second where the first comes in stretches."""
_ROWS: Final = (16, 32, 64, 128)
_COLUMNS: Final = (32, 64, 128, 256)
_KEPT: Final = 8
_KEPT_WALKS: Final = 4
_LATER: Final = 1.001
_KEPT_ALIKE: Final = 2
"""Of those with tiles and warps alike so many are kept."""
_FEW_WARPS: Final = 4
_MOST_AREA: Final = {4: 64 * 256, 8: 128 * 256}
"""Elements of the larger tile for a number of warps."""
_WIDE_ROWS: Final = 64
"""From which on more warps have rows of their own."""
_MOST_HELD: Final = 256
"""Elements of the first sum for which pixels are held."""
_WALKS: Final = ((64, 128, 4), (32, 64, 4), (64, 64, 4), (128, 64, 8))
"""Rows, columns of the first product, and warps of programs that walk, the likelier first."""
_MOST_STRETCHES: Final = 4
_MOST_WEIGHTS: Final = 1 << 16
"""Elements that such a program holds."""
_AT_ONCE: Final = 1.15
"""How much longer still with two stages."""
_LONGER_WHOLE: Final = 1.12
_LONGER: Final = 1.25
"""How much longer chains take than those terms say: of 24 on an H200, with the first product whole,
and in stretches."""


@dataclass(frozen=True, slots=True)
class ChainChoice:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    """Rows, columns of the first product, steps of its sum."""
    then_tile: int
    """Columns of the second product."""
    warps: int
    pipeline: int
    programs: int = 0
    """How many walk down the rows, with weights that they hold; 0 where each does one tile."""
    early: bool = False
    pieces: int = 1
    precision: str = "ieee"


def tiles_for_chain(links: Links, target: CudaTarget) -> Iterator[tuple[ChainChoice, float]]:
    """Yield the most promising tiles with their estimated seconds, best first."""
    both = _Products(links, target)
    found = [(both.seconds(choice), choice) for choice in both.choices()]
    kept: dict[tuple[int, ...], int] = {}
    best: list[tuple[ChainChoice, float]] = []
    for seconds, choice in sorted(found, key=lambda pair: pair[0]):
        kind = (*choice.tile[:2], choice.then_tile, choice.warps)
        kept[kind] = kept.get(kind, 0) + 1
        if kept[kind] <= _KEPT_ALIKE and len(best) < _KEPT:
            best.append((choice, seconds))
    # Of those that walk no estimate is known: some are tried, and none is the first.
    walks = list(islice(both.walks(), _KEPT_WALKS)) if best else []
    hints = [seconds for _, seconds in (*best, best[-1])[1:]] if best else []
    best += [(walk, _LATER * hints[min(k, len(hints) - 1)]) for k, walk in enumerate(walks)]
    yield from sorted(best, key=lambda pair: pair[1])


def first_shape(links: Links, target: CudaTarget) -> Shape:
    """The first product."""
    root = root_of(links.first)[0]
    if isinstance(root, ConvSum):
        return sum_shape(links.first, root, target)
    return product_shape(links.first, cast("Conv", root), target)


def then_columns(links: Links) -> int:
    """Columns of the second product."""
    return cast("int", value_of(links.second, 1).tensor.shape[0])


class _Products:
    """Both products."""

    def __init__(self, links: Links, target: CudaTarget) -> None:
        self.shape, self.columns = first_shape(links, target), then_columns(links)
        self.keeps, self.target, self.gpu = links.keeps, target, gpu_of(target)
        extras = links.second.inputs[root_of(links.second)[1] :]
        self.adds = any(v is not None and v.constant is None for v in extras)
        """Whether the second's epilogue reads a tensor."""

    def choices(self) -> Iterator[ChainChoice]:
        """Every choice that fits."""
        shape = self.shape
        whole, then = tile_extent(shape.columns), tile_extent(self.columns)
        steps = sorted({min(64, tile_extent(shape.run)), min(128, tile_extent(shape.run))})
        is_short = shape.depth <= _MOST_HELD and not shape.windows
        for bm in _ROWS:
            if bm > tile_extent(shape.rows):
                continue
            if whole <= _MOST_COLUMNS:
                for bn, bk, pipeline in product(_COLUMNS, steps, (1, 2, 3, 4, 6)):
                    yield from self._fitting((bm, whole, bk), bn, pipeline)
            if then <= _MOST_COLUMNS and is_short:
                bk = min(64, tile_extent(shape.run))
                is_even = shape.images == 1 or not (shape.run % bk or shape.depth % bk)
                for own, pipeline in product(_COLUMNS, (1, 2, 3, 4)):
                    if own < shape.columns and is_even:
                        yield from self._fitting((bm, own, bk), then, pipeline)

    def walks(self) -> Iterator[ChainChoice]:
        """Programs that hold the weights of both products, and go down the rows."""
        shape, then = self.shape, tile_extent(self.columns)
        weights = shape.columns * (shape.depth + then)
        bk = min(64, tile_extent(shape.run))
        is_short = shape.depth <= _MOST_HELD and not shape.windows and then <= _MOST_COLUMNS
        if not is_short or shape.depth % bk or shape.run % bk or weights > _MOST_WEIGHTS:
            return
        for (bm, bn, warps), pipeline in product(_WALKS, (3, 2)):
            stretches, rest = divmod(shape.columns, bn)
            ahead = (pipeline - 1) * bm * (shape.depth + shape.adds * shape.columns)
            elements = weights + ahead + bm * bn * 3 // 2
            room = elements * shape.dtype.size_bytes + OWN_SHARED_BYTES
            beside = min(2, self.target.shared_bytes // room)
            if not rest and 1 < stretches <= _MOST_STRETCHES and beside:
                programs = beside * self.target.multiprocessors
                yield ChainChoice((bm, bn, bk), then, warps, pipeline, programs, early=True)

    def _fitting(
        self, tile: tuple[int, int, int], then_tile: int, pipeline: int
    ) -> Iterator[ChainChoice]:
        bm, bn, bk = tile
        shape, room = self.shape, self.target.shared_bytes - OWN_SHARED_BYTES
        steps = -(-shape.depth // bk) if bn >= shape.columns else -(-shape.columns // bn)
        is_piped = pipeline > 1
        if then_tile > tile_extent(self.columns) or pipeline > steps + 1 or is_piped != (steps > 1):
            return
        for warps in (4, 8):
            choice = ChainChoice(tile, then_tile, warps, pipeline)
            is_apt = warps == _FEW_WARPS or bm >= _WIDE_ROWS
            is_apt = is_apt and bm * max(bn, then_tile) <= _MOST_AREA[warps]
            if is_apt and self.shared_bytes(choice) <= room:
                yield choice

    def shared_bytes(self, choice: ChainChoice) -> int:
        """What a program needs of shared memory at most, on any GPU.

        Where the first product comes in stretches, tensor cores may take pixels, which are in whole
        steps, and what is between the products from there; what is added passes through it.
        """
        shape, (bm, bn, bk) = self.shape, choice.tile
        if bn >= shape.columns:
            return self._held_bytes(choice, shape.depth)
        depth = -(-shape.depth // bk) * bk
        passing = bm * (depth + bn) * shape.dtype.size_bytes
        return self._held_bytes(choice, depth) + passing

    def _held_bytes(self, choice: ChainChoice, depth: int) -> int:
        """What is asked for ahead, and what is between the products: what costs were fitted by."""
        shape, (bm, bn, bk) = self.shape, choice.tile
        if bn >= shape.columns:
            held = choice.pipeline * (bm + bn) * bk + bn * (choice.then_tile + bm)
        else:
            step = bn * (depth + choice.then_tile) + bm * bn * shape.adds
            held = choice.pipeline * step + bm * bn
        return held * shape.dtype.size_bytes

    def _registers(self, choice: ChainChoice) -> float:
        """That a thread would like to have: both sums, what is added, addresses."""
        bm, bn, _ = choice.tile
        sums = bm * (bn * (1 + self.shape.adds / 2) + choice.then_tile)
        return 40 + 1.1 * sums / (choice.warps * WARP_LANES)

    def seconds(self, choice: ChainChoice) -> float:
        """What a launch takes."""
        shape, size, then = self.shape, self.shape.dtype.size_bytes, choice.then_tile
        (bm, bn, bk), steps = choice.tile, -(-self.shape.depth // choice.tile[2])
        is_whole = bn >= shape.columns
        turns, depth = (steps, bk) if is_whole else (-(-shape.columns // bn), shape.depth + bn)
        down, across = -(-shape.rows // bm), -(-self.columns // then)
        step_bytes, end_bytes = self._bytes(choice, steps, across)
        first = 0 if is_whole else bm * shape.depth * size
        source = shape.image or shape.rows * shape.depth
        moved = shape.columns * (self.keeps + shape.adds) + self.columns * (1 + self.adds)
        work = Work(
            programs=down * across,
            warps=choice.warps,
            registers=self._registers(choice),
            shared_bytes=self._held_bytes(choice, shape.depth),
            steps=turns,
            held=choice.pipeline,
            step_seconds=self._busy(choice, steps),
            turn_seconds=TURN_SECONDS * depth,
            chain_seconds=CHAIN_SECONDS * depth,
            step_bytes=step_bytes,
            end_bytes=end_bytes,
            sums=bm * (then + bn) / (choice.warps * WARP_LANES),
            fetched_bytes=float(down * across * (turns * step_bytes + end_bytes + first)),
            source_bytes=float(size * source),
            moved_bytes=float(size * (source + shape.rows * moved)),
        )
        longer = _LONGER_WHOLE if is_whole else _LONGER
        # With two stages the compiler asks for the next step when the one before is done.
        return seconds_of(work, self.gpu) * longer * (_AT_ONCE if choice.pipeline == 2 else 1.0)

    def _busy(self, choice: ChainChoice, steps: int) -> float:
        """What a step's products keep a multiprocessor busy."""
        (bm, bn, bk), then, dtype = choice.tile, choice.then_tile, self.shape.dtype
        first = product_seconds((bm, bn, bk), choice.warps, dtype, "ieee", self.gpu)
        second = product_seconds((bm, then, bn), choice.warps, dtype, "ieee", self.gpu)
        return first + second / steps if bn >= self.shape.columns else steps * first + second

    def _bytes(self, choice: ChainChoice, steps: int, across: int) -> tuple[float, float]:
        """What a step asks for, and what a program reads and writes at its end."""
        shape, (bm, bn, bk), then = self.shape, choice.tile, choice.then_tile
        is_whole, size = bn >= shape.columns, self.shape.dtype.size_bytes
        if is_whole:
            step = bk * (bm + bn) + bn * then / steps
        else:
            step = bn * (shape.depth + then + bm * shape.adds)
        end = bm * then * (1 + self.adds) + bm * shape.columns * self.keeps / across
        return size * step, size * (end + bm * shape.columns * shape.adds * is_whole)
