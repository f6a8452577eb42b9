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
from smelt.backends.cuda._cost_model import (
    LOAD_BYTES,
    WARP_LANES,
    LaunchWorkload,
    gpu_spec_of,
    l2_bytes_per_second,
    next_power_of_two,
    product_seconds,
    seconds_of,
    tile_extent,
)
from smelt.backends.cuda._kernel_source import MIN_VECTOR, VECTOR
from smelt.engine import parameters
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smelt.backends.cuda._cost_model import GpuSpec
    from smelt.backends.cuda._target import CudaTarget
    from smelt.types import Dim, TensorFormat

_MAX_CANDIDATES: Final = 24
_MAX_SIMILAR_CANDIDATES: Final = 3
"""Of tiles with as many rows and columns so many are kept."""
_MAX_SPLIT_K_CANDIDATES: Final = 5
"""The same of all sums in pieces."""
STEP_OVERHEAD_SECONDS: Final = 4.5e-10
"""For each element of the sum's depth in a step: addresses, conditions, barriers."""
DEPENDENCY_SECONDS: Final = 8.8e-10
"""The same of instructions that wait for each other."""
_GATHER_PRICE: Final = 1.3
"""How much dearer elements of the first factor are, whose rows lie anywhere."""
_TWO_IMAGE_GATHER_PRICE: Final = 2.3
"""The same where they may be of either of two images."""
_ELEMENTWISE_GATHER_PRICE: Final = 4.4
"""How much dearer those still are that are read one by one."""
_REDUCE_SECONDS: Final = 8.3e-7
_SPLIT_SECONDS: Final = 1.7e-7
"""Of the launch that adds the pieces of a sum, and of each of them."""
_LINE_BYTES: Final = 128
_REUSED_AREA: Final = 64 * 64
_CACHED_SHAPES: Final = 256
"""Products."""
_LARGEST_TILE: Final = 128 * 256
_MIN_AREA: Final = {4: 0, 8: 64 * 128}
_MAX_AREA: Final = {4: 128 * 128, 8: _LARGEST_TILE}
"""Elements of a tile for a number of warps."""
_HALF_SIZES: Final = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256))
_SINGLE_SIZES: Final = ((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64))
"""Rows, columns and steps of tiles, by the factors' element type."""
_FEW_STEPS: Final = 64
"""Shorter steps of a sum in 16 bits are for shorter sums alone."""
OWN_SHARED_BYTES: Final = 2048
"""Shared memory beside the factors."""
_UNFITTED_PENALTY: Final = 1.01
"""How much longer kernels are said to take that no fitted estimate ranks than those that one does:
without a clock they are not chosen."""
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class GemmShape:
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
class TileConfig:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    num_warps: int
    num_stages: int
    precision: str
    prefetches_epilogue: bool = False
    split_k: int = 1

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
        needed_bytes = sum_bytes * self.split_k if self.split_k > 1 else 0
        return Tactic(
            family, options, inputs, (output,), workspace_bytes=needed_bytes, cost_hint=seconds
        )


def kernel_options(tactic: Tactic, *, prefetches_weights: bool = True) -> dict[str, Any]:
    """What a tactic's parameters say of its kernel; ``prefetches_weights`` for weights ahead."""
    known = {
        "schedule": "tiled",
        "prefetches_weights": prefetches_weights,
        "split_k_partials": 1,
        "split_k_stride": 0,
    }
    return {**known, **tactic.options}


@functools.lru_cache(_CACHED_SHAPES)
def tiles_for(shape: GemmShape, target: CudaTarget) -> tuple[tuple[TileConfig, float], ...]:
    """The most promising tiles, with their estimated seconds, best first.

    Every family of products asks, about the same products again and again.
    """
    return tuple(_promising(shape, target))


def _promising(shape: GemmShape, target: CudaTarget) -> Iterator[tuple[TileConfig, float]]:
    found = [(estimate(shape, choice, target), choice) for choice in _tile_configs(shape, target)]
    found.sort(key=lambda pair: pair[0])
    kept: Counter[tuple[int, int, bool, bool]] = Counter()
    split_k_count = 0
    for seconds, choice in found:
        is_cut = choice.split_k > 1
        kind = (*choice.tile[:2], choice.prefetches_epilogue, is_cut)
        if kept[kind] == _MAX_SIMILAR_CANDIDATES or (
            is_cut and split_k_count == _MAX_SPLIT_K_CANDIDATES
        ):
            continue
        kept[kind] += 1
        split_k_count += is_cut
        yield choice, seconds
        if kept.total() == _MAX_CANDIDATES:
            return


def ranked_after_tiles(
    ranked: Iterable[tuple[float, ConfigT]], shape: GemmShape, target: CudaTarget
) -> Iterator[tuple[float, ConfigT]]:
    """Yield what else computes a product, with seconds that are more than the best tile's."""
    tiles = (seconds for choice, seconds in tiles_for(shape, target) if choice.split_k == 1)
    best = next(tiles, None)
    if best is None:
        return  # nothing is summed
    for seconds, choice in ranked:
        yield _UNFITTED_PENALTY * max(seconds, best), choice


def _tile_configs(shape: GemmShape, target: CudaTarget) -> Iterator[TileConfig]:
    """Every tile that fits the product and the GPU."""
    is_single = shape.dtype is DType.FLOAT32
    precisions = _precisions(target) if is_single else ("ieee",)
    for tile in product(*(_SINGLE_SIZES if is_single else _HALF_SIZES)):
        most = (shape.rows, shape.columns, shape.depth)
        if any(size > tile_extent(m) for size, m in zip(tile, most, strict=True)):
            continue
        if tile[2] < min(_FEW_STEPS, next_power_of_two(shape.depth)) and not is_single:
            continue
        steps, area = -(-shape.depth // tile[2]), tile[0] * tile[1]
        if area > _LARGEST_TILE:
            continue
        all_warps = [w for w in (4, 8) if _MIN_AREA[w] <= area <= _MAX_AREA[w]]
        for num_stages, split_k in product(
            _stage_counts(shape, tile, steps, target), _split_k_options(shape, tile, steps, target)
        ):
            if num_stages > -(-steps // split_k) + 1:
                continue
            prefetch_options = {False, shape.adds and split_k == 1}
            for precision, prefetches_epilogue, num_warps in product(
                precisions, sorted(prefetch_options), all_warps
            ):
                yield TileConfig(
                    tile, num_warps, num_stages, precision, prefetches_epilogue, split_k
                )


def _precisions(target: CudaTarget) -> tuple[str, ...]:
    """How float32 may be multiplied; three products of tf32 are as good as one of float32."""
    if not target.has_tf32:
        return ("ieee",)
    return ("ieee", "tf32x3", "tf32") if target.allows_tf32 else ("ieee", "tf32x3")


def _stage_counts(
    shape: GemmShape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """How many steps' factors may be held: one where nothing can run ahead."""
    each = (tile[0] + tile[1]) * tile[2] * shape.dtype.size_bytes
    most = (target.shared_bytes - OWN_SHARED_BYTES) // each
    if most and (steps == 1 or shape.run % VECTOR):
        yield 1
    if steps == 1 or shape.run % MIN_VECTOR:
        return
    for num_stages in (2, 3) if shape.dtype is DType.FLOAT32 else (2, 3, 4, 6, 8):
        if num_stages <= most:
            yield num_stages


def _split_k_options(
    shape: GemmShape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """Into how many parts a sum may be cut: only while that gives idle multiprocessors work."""
    yield 1
    tiles = shape.matrices * -(-shape.rows // tile[0]) * -(-shape.columns // tile[1])
    for split_k in (2, 3, 4, 6, 8):
        if (
            shape.matrices == 1
            and split_k * 2 <= steps
            and tiles * split_k <= 2 * target.multiprocessors
        ):
            yield split_k


def estimate(shape: GemmShape, choice: TileConfig, target: CudaTarget) -> float:
    """Seconds of a product."""
    gpu, work = gpu_spec_of(target), _work(shape, choice, target)
    seconds = seconds_of(work, gpu)
    if choice.split_k > 1:
        seconds += split_k_reduce_seconds(shape, choice.split_k, work, gpu)
    return seconds


def split_k_reduce_seconds(
    shape: GemmShape, split_k: int, work: LaunchWorkload, gpu: GpuSpec
) -> float:
    """Seconds of the launch that adds the pieces of a sum."""
    accumulators = split_k * shape.rows * shape.columns
    split_k_partials = 2 * DType.FLOAT32.size_bytes * accumulators / l2_bytes_per_second(work, gpu)
    return _REDUCE_SECONDS + split_k * _SPLIT_SECONDS + split_k_partials


def _work(shape: GemmShape, choice: TileConfig, target: CudaTarget) -> LaunchWorkload:
    """What the programs of a product do."""
    bm, bn, bk = choice.tile
    size, is_split = shape.dtype.size_bytes, choice.split_k > 1
    down, across = -(-shape.rows // bm), -(-shape.columns // bn)
    programs = shape.matrices * down * across * choice.split_k
    steps = ceil(ceil(shape.depth / bk) / choice.split_k)
    written = bm * bn * (size * (1 + shape.adds))
    step_bytes = (bm + bn) * bk * size
    first = size * (shape.image or shape.rows * shape.depth)
    columns = shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    beyond = (down * bm - shape.rows) * across + (across * bn - shape.columns) * down
    return LaunchWorkload(
        programs=programs,
        num_warps=choice.num_warps,
        registers=_registers(shape, choice),
        shared_bytes=choice.num_stages * step_bytes,
        steps=steps,
        num_stages=choice.num_stages,
        step_seconds=product_seconds(
            choice.tile, choice.num_warps, shape.dtype, choice.precision, gpu_spec_of(target)
        ),
        step_overhead_seconds=STEP_OVERHEAD_SECONDS * bk,
        dependency_seconds=DEPENDENCY_SECONDS * bk,
        step_bytes=bk * size * (bm * _gather_price(shape) + bn),
        epilogue_bytes=written + (2 * bm * bn if is_split else 0),
        accumulators=bm * bn / (choice.num_warps * WARP_LANES),
        l2_read_bytes=float(programs) * (steps * step_bytes + written),
        source_bytes=first,
        moved_bytes=shape.matrices * (first + size * columns),
        reuse=sqrt(sqrt(bm * bn / _REUSED_AREA)),
        # What reaches past the end reads the last line again and again.
        contended_bytes=float(steps) * beyond * _LINE_BYTES,
    )


def _gather_price(shape: GemmShape) -> float:
    """How much dearer the first factor's elements are than the second's, which lie side by side."""
    scattered = _ELEMENTWISE_GATHER_PRICE if shape.run % MIN_VECTOR else 1.0
    return scattered * (_TWO_IMAGE_GATHER_PRICE if shape.images > 1 else _GATHER_PRICE)


def _registers(shape: GemmShape, choice: TileConfig) -> float:
    """That a thread would like to have: sums, addresses, what is added."""
    bm, bn, bk = choice.tile
    threads = choice.num_warps * WARP_LANES
    accumulators = bm * bn / threads
    wanted = 28 + accumulators * (1.15 + 0.3 * shape.adds + 0.35 * choice.prefetches_epilogue)
    if choice.num_stages > 1:
        row = bk * shape.dtype.size_bytes / LOAD_BYTES / threads
        wanted += row * (2 * (bm + bn) + 3 * bm * (shape.windows or shape.images > 1))
    return wanted
