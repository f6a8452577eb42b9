"""Tile candidates of products, ranked by estimated time."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import gpu_spec_of, next_power_of_two, tile_extent
from smelt.backends.cuda._kernel_source import MIN_VECTOR, VECTOR
from smelt.backends.cuda._product_costs import tiled_seconds
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape

_MAX_CANDIDATES: Final = 24
"""Maximum number of candidates of a product. Chosen without a measurement."""
_MAX_SIMILAR_CANDIDATES: Final = 3
"""Maximum number of candidates with equal rows and columns. Chosen without a measurement."""
_MAX_SPLIT_K_CANDIDATES: Final = 5
"""Maximum number of split-K candidates. With five, the best of 839 measured tactics of 63 products
is timed for each product (docs/lab/tuning-on-gpus.md)."""
_CACHED_SHAPES: Final = 256
"""Number of shapes whose candidates are cached. Chosen without a measurement."""
_LARGEST_TILE: Final = 128 * 256
"""Maximum elements of a tile. Chosen without a measurement."""
_MIN_AREA: Final = {4: 0, 8: 64 * 128}
"""Minimum elements of a tile, by number of warps. Chosen without a measurement."""
_MAX_AREA: Final = {4: 128 * 128, 8: _LARGEST_TILE}
"""Maximum elements of a tile, by number of warps. Chosen without a measurement."""
_HALF_SIZES: Final = ((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256))
"""Rows, columns and steps of tiles for 16-bit operands. Rows from 16 and steps up to 256 reduce the
products of ResNet-50 at batch 1 on an H200 from 251 to 215 µs, with other changes
(docs/lab/products-on-gpus.md)."""
_SINGLE_SIZES: Final = ((16, 32, 64, 128), (16, 32, 64, 128), (16, 32, 64))
"""Rows, columns and steps of tiles for float32 operands. Chosen without a measurement."""
_FEW_STEPS: Final = 64
"""Minimum step of a 16-bit reduction, in elements, unless the reduction itself is shorter. Chosen
without a measurement."""
OWN_SHARED_BYTES: Final = 2048
"""Shared memory in bytes that a kernel needs besides its operands. Chosen without a measurement."""


@functools.lru_cache(_CACHED_SHAPES)
def tiles_for(shape: GemmShape, target: CudaTarget) -> tuple[tuple[TileConfig, float], ...]:
    """Return the most promising tiles with their estimated seconds, best first.

    Results are cached because every family of products requests the same shapes repeatedly.
    """
    return tuple(_promising(shape, target))


def _promising(shape: GemmShape, target: CudaTarget) -> Iterator[tuple[TileConfig, float]]:
    """Yield the best tiles, with a limited number of similar ones."""
    gpu = gpu_spec_of(target)
    ranked = [(tiled_seconds(shape, c, gpu), c) for c in _tile_configs(shape, target)]
    similar: Counter[tuple[int, int, bool, bool]] = Counter()
    split_k_count = 0
    for seconds, choice in sorted(ranked, key=itemgetter(0)):
        is_split = choice.split_k > 1
        kind = (*choice.tile[:2], choice.prefetches_epilogue, is_split)
        has_splits = is_split and split_k_count == _MAX_SPLIT_K_CANDIDATES
        if has_splits or similar[kind] == _MAX_SIMILAR_CANDIDATES:
            continue
        similar[kind] += 1
        split_k_count += is_split
        yield choice, seconds
        if similar.total() == _MAX_CANDIDATES:
            return


def _tile_configs(shape: GemmShape, target: CudaTarget) -> Iterator[TileConfig]:
    """Yield every tile that fits the product and the GPU."""
    is_single = shape.dtype is DType.FLOAT32
    precisions = _precisions(target) if is_single else ("ieee",)
    for tile in product(*(_SINGLE_SIZES if is_single else _HALF_SIZES)):
        extents = (shape.rows, shape.columns, shape.depth)
        if any(size > tile_extent(m) for size, m in zip(tile, extents, strict=True)):
            continue
        if tile[2] < min(_FEW_STEPS, next_power_of_two(shape.depth)) and not is_single:
            continue
        steps, area = -(-shape.depth // tile[2]), tile[0] * tile[1]
        if area > _LARGEST_TILE:
            continue
        all_warps = [w for w in (4, 8) if _MIN_AREA[w] <= area <= _MAX_AREA[w]]
        stage_counts = _stage_counts(shape, tile, steps, target)
        split_k_options = _split_k_options(shape, tile, steps, target)
        for num_stages, split_k in product(stage_counts, split_k_options):
            if num_stages > -(-steps // split_k) + 1:
                continue
            prefetch_options = sorted({False, shape.adds and split_k == 1})
            for precision, prefetches, num_warps in product(
                precisions, prefetch_options, all_warps
            ):
                yield TileConfig(tile, num_warps, num_stages, precision, prefetches, split_k)


def _precisions(target: CudaTarget) -> tuple[str, ...]:
    """Return the precisions of float32 products.

    Three TF32 products are as accurate as one float32 product.
    """
    if not target.has_tf32:
        return ("ieee",)
    return ("ieee", "tf32x3", "tf32") if target.allows_tf32 else ("ieee", "tf32x3")


def _stage_counts(
    shape: GemmShape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """Yield the possible numbers of pipeline stages; 1 if loads cannot be pipelined."""
    stage_bytes = (tile[0] + tile[1]) * tile[2] * shape.dtype.size_bytes
    max_stages = (target.shared_bytes - OWN_SHARED_BYTES) // stage_bytes
    if max_stages and (steps == 1 or shape.run % VECTOR):
        yield 1
    if steps == 1 or shape.run % MIN_VECTOR:
        return
    for num_stages in (2, 3) if shape.dtype is DType.FLOAT32 else (2, 3, 4, 6, 8):
        if num_stages <= max_stages:
            yield num_stages


def _split_k_options(
    shape: GemmShape, tile: tuple[int, int, int], steps: int, target: CudaTarget
) -> Iterator[int]:
    """Yield the possible numbers of splits: more than one only to occupy idle multiprocessors."""
    yield 1
    tiles = -(-shape.rows // tile[0]) * -(-shape.columns // tile[1])
    for split_k in (2, 3, 4, 6, 8) if shape.matrices == 1 else ():
        if split_k * 2 <= steps and tiles * split_k <= 2 * target.multiprocessors:
            yield split_k
