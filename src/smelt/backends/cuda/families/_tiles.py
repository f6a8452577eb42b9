"""Tiles for products: which are worth trying, by what the GPU could do at best."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from dataclasses import dataclass
from itertools import product
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, Final, TypeVar

from smelt.backends._base import Tactic
from smelt.backends.cuda._costs import (
    LOAD_BYTES,
    WARP_LANES,
    Work,
    cache_rate,
    gpu_of,
    next_power,
    product_seconds,
    seconds_of,
    tile_extent,
)
from smelt.backends.cuda._source import LEAST_VECTOR, VECTOR
from smelt.engine import parameters
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smelt.backends.cuda._costs import Gpu
    from smelt.backends.cuda._target import CudaTarget
    from smelt.types import Dim, TensorFormat

_KEPT: Final = 24
_KEPT_ALIKE: Final = 3
"""Of tiles with as many rows and columns so many are kept."""
_KEPT_IN_PIECES: Final = 5
"""The same of all sums in pieces."""
TURN_SECONDS: Final = 4.5e-10
"""For each element of the sum's depth in a step: addresses, conditions, barriers."""
CHAIN_SECONDS: Final = 8.8e-10
"""The same of instructions that wait for each other."""
_SOUGHT: Final = 1.3
"""How much dearer elements of the first factor are, whose rows lie anywhere."""
_SOUGHT_TWICE: Final = 2.3
"""The same where they may be of either of two images."""
_SCATTERED: Final = 4.4
"""How much dearer those still are that are read one by one."""
_ADDING_SECONDS: Final = 8.3e-7
_PIECE_SECONDS: Final = 1.7e-7
"""Of the launch that adds the pieces of a sum, and of each of them."""
_LINE_BYTES: Final = 128
_REUSED_AREA: Final = 64 * 64
_REMEMBERED: Final = 256
"""Products."""
_LARGEST_TILE: Final = 128 * 256
_LEAST_AREA: Final = {4: 0, 8: 64 * 128}
_MOST_AREA: Final = {4: 128 * 128, 8: _LARGEST_TILE}
"""Elements of a tile for a number of warps."""
_HALF_SIZES: Final = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256))
_SINGLE_SIZES: Final = ((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64))
"""Rows, columns and steps of tiles, by the factors' element type."""
_FEW_STEPS: Final = 64
"""Shorter steps of a sum in 16 bits are for shorter sums alone."""
OWN_SHARED_BYTES: Final = 2048
"""Shared memory beside the factors."""
_LATER: Final = 1.01
"""How much longer kernels are said to take that no fitted estimate ranks than those that one does:
without a clock they are not chosen."""
ChoiceT = TypeVar("ChoiceT")


@dataclass(frozen=True, slots=True)
class Shape:
    """The extents of a product."""

    matrices: int
    rows: int
    columns: int
    depth: int
    dtype: DType
    """Of the factors."""
    adds: bool = False
    """Whether the epilogue reads a tensor."""
    run: int = 0
    """Elements of the depth that lie side by side; 0 for all of them."""
    image: int = 0
    """Elements of the first factor, where windows read them several times."""
    windows: bool = False
    """Whether windows have several taps, which may lie outside of the image."""
    images: int = 1
    """Images of which windows are sums."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    warps: int
    pipeline: int
    precision: str
    early: bool = False
    pieces: int = 1

    def tactic(
        self,
        family: str,
        inputs: tuple[TensorFormat | None, ...],
        output: TensorFormat,
        sum_bytes: Dim,
        seconds: float,
    ) -> Tactic:
        """The decision as data; ``sum_bytes`` is what the sums of one piece take."""
        options = parameters(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
        room = sum_bytes * self.pieces if self.pieces > 1 else 0
        return Tactic(family, options, inputs, (output,), workspace_bytes=room, cost_hint=seconds)


def choices(tactic: Tactic, *, asks: bool = True) -> dict[str, Any]:
    """What a tactic's parameters say of its kernel; ``asks`` for weights ahead."""
    known = {"sums": "product", "asks": asks, "added": 1, "piece_stride": 0}
    return {**known, **dict(tactic.parameters)}


@functools.lru_cache(_REMEMBERED)
def tiles_for(shape: Shape, target: CudaTarget) -> tuple[tuple[Choice, float], ...]:
    """The most promising tiles, with their estimated seconds, best first.

    Every family of products asks, about the same products again and again.
    """
    return tuple(_promising(shape, target))


def _promising(shape: Shape, target: CudaTarget) -> Iterator[tuple[Choice, float]]:
    found = [(estimate(shape, choice, target), choice) for choice in _choices(shape, target)]
    found.sort(key=lambda pair: pair[0])
    kept: Counter[tuple[int, int, bool, bool]] = Counter()
    in_pieces = 0
    for seconds, choice in found:
        is_cut = choice.pieces > 1
        kind = (*choice.tile[:2], choice.early, is_cut)
        if kept[kind] == _KEPT_ALIKE or (is_cut and in_pieces == _KEPT_IN_PIECES):
            continue
        kept[kind] += 1
        in_pieces += is_cut
        yield choice, seconds
        if kept.total() == _KEPT:
            return


def behind_tiles(
    ranked: Iterable[tuple[float, ChoiceT]], shape: Shape, target: CudaTarget
) -> Iterator[tuple[float, ChoiceT]]:
    """Yield what else computes a product, with seconds that are more than the best tile's."""
    tiles = (seconds for choice, seconds in tiles_for(shape, target) if choice.pieces == 1)
    best = next(tiles, None)
    if best is None:
        return  # nothing is summed
    for seconds, choice in ranked:
        yield _LATER * max(seconds, best), choice


def _choices(shape: Shape, target: CudaTarget) -> Iterator[Choice]:
    """Every tile that fits the product and the GPU."""
    is_single = shape.dtype is DType.FLOAT32
    precisions = _precisions(target) if is_single else ("ieee",)
    for tile in product(*(_SINGLE_SIZES if is_single else _HALF_SIZES)):
        most = (shape.rows, shape.columns, shape.depth)
        if any(size > tile_extent(m) for size, m in zip(tile, most, strict=True)):
            continue
        if tile[2] < min(_FEW_STEPS, next_power(shape.depth)) and not is_single:
            continue
        steps, area = -(-shape.depth // tile[2]), tile[0] * tile[1]
        if area > _LARGEST_TILE:
            continue
        all_warps = [w for w in (4, 8) if _LEAST_AREA[w] <= area <= _MOST_AREA[w]]
        for pipeline, pieces in product(
            _pipelines(shape, tile, steps, target), _pieces(shape, tile, steps, target)
        ):
            if pipeline > -(-steps // pieces) + 1:
                continue
            earlies = {False, shape.adds and pieces == 1}
            for precision, early, warps in product(precisions, sorted(earlies), all_warps):
                yield Choice(tile, warps, pipeline, precision, early, pieces)


def _precisions(target: CudaTarget) -> tuple[str, ...]:
    """How float32 may be multiplied; three products of tf32 are as good as one of float32."""
    if not target.has_tf32:
        return ("ieee",)
    return ("ieee", "tf32x3", "tf32") if target.allows_tf32 else ("ieee", "tf32x3")


def _pipelines(
    shape: Shape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """How many steps' factors may be held: one where nothing can run ahead."""
    each = (tile[0] + tile[1]) * tile[2] * shape.dtype.size_bytes
    most = (target.shared_bytes - OWN_SHARED_BYTES) // each
    if most and (steps == 1 or shape.run % VECTOR):
        yield 1
    if steps == 1 or shape.run % LEAST_VECTOR:
        return
    for pipeline in (2, 3) if shape.dtype is DType.FLOAT32 else (2, 3, 4, 6, 8):
        if pipeline <= most:
            yield pipeline


def _pieces(
    shape: Shape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """Into how many parts a sum may be cut: only while that gives idle multiprocessors work."""
    yield 1
    tiles = shape.matrices * -(-shape.rows // tile[0]) * -(-shape.columns // tile[1])
    for pieces in (2, 3, 4, 6, 8):
        if (
            shape.matrices == 1
            and pieces * 2 <= steps
            and tiles * pieces <= 2 * target.multiprocessors
        ):
            yield pieces


def estimate(shape: Shape, choice: Choice, target: CudaTarget) -> float:
    """Seconds of a product."""
    gpu, work = gpu_of(target), _work(shape, choice, target)
    seconds = seconds_of(work, gpu)
    if choice.pieces > 1:
        seconds += adding_seconds(shape, choice.pieces, work, gpu)
    return seconds


def adding_seconds(shape: Shape, pieces: int, work: Work, gpu: Gpu) -> float:
    """Seconds of the launch that adds the pieces of a sum."""
    sums = pieces * shape.rows * shape.columns
    added = 2 * DType.FLOAT32.size_bytes * sums / cache_rate(work, gpu)
    return _ADDING_SECONDS + pieces * _PIECE_SECONDS + added


def _work(shape: Shape, choice: Choice, target: CudaTarget) -> Work:
    """What the programs of a product do."""
    bm, bn, bk = choice.tile
    size, is_split = shape.dtype.size_bytes, choice.pieces > 1
    down, across = -(-shape.rows // bm), -(-shape.columns // bn)
    programs = shape.matrices * down * across * choice.pieces
    steps = ceil(ceil(shape.depth / bk) / choice.pieces)
    written = bm * bn * (size * (1 + shape.adds))
    step_bytes = (bm + bn) * bk * size
    first = size * (shape.image or shape.rows * shape.depth)
    columns = shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    beyond = (down * bm - shape.rows) * across + (across * bn - shape.columns) * down
    return Work(
        programs=programs,
        warps=choice.warps,
        registers=_registers(shape, choice),
        shared_bytes=choice.pipeline * step_bytes,
        steps=steps,
        held=choice.pipeline,
        step_seconds=product_seconds(
            choice.tile, choice.warps, shape.dtype, choice.precision, gpu_of(target)
        ),
        turn_seconds=TURN_SECONDS * bk,
        chain_seconds=CHAIN_SECONDS * bk,
        step_bytes=bk * size * (bm * _price(shape) + bn),
        end_bytes=written + (2 * bm * bn if is_split else 0),
        sums=bm * bn / (choice.warps * WARP_LANES),
        fetched_bytes=float(programs) * (steps * step_bytes + written),
        source_bytes=first,
        moved_bytes=shape.matrices * (first + size * columns),
        reuse=sqrt(sqrt(bm * bn / _REUSED_AREA)),
        # What reaches past the end reads the last line again and again.
        crowded_bytes=float(steps) * beyond * _LINE_BYTES,
    )


def _price(shape: Shape) -> float:
    """How much dearer the first factor's elements are than the second's, which lie side by side."""
    scattered = _SCATTERED if shape.run % LEAST_VECTOR else 1.0
    return scattered * (_SOUGHT_TWICE if shape.images > 1 else _SOUGHT)


def _registers(shape: Shape, choice: Choice) -> float:
    """That a thread would like to have: sums, addresses, what is added."""
    bm, bn, bk = choice.tile
    threads = choice.warps * WARP_LANES
    sums = bm * bn / threads
    wanted = 28 + sums * (1.15 + 0.3 * shape.adds + 0.35 * choice.early)
    if choice.pipeline > 1:
        row = bk * shape.dtype.size_bytes / LOAD_BYTES / threads
        wanted += row * (2 * (bm + bn) + 3 * bm * (shape.windows or shape.images > 1))
    return wanted
