"""Tile candidates of products, ranked by estimated time."""

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
"""Maximum number of candidates of a product. Chosen without a measurement."""
_MAX_SIMILAR_CANDIDATES: Final = 3
"""Maximum number of candidates with equal rows and columns. Chosen without a measurement."""
_MAX_SPLIT_K_CANDIDATES: Final = 5
"""Maximum number of split-K candidates. With five, the best of 839 measured tactics of 63 products
is timed for each product (docs/lab/tuning-on-gpus.md)."""
STEP_OVERHEAD_SECONDS: Final = 4.5e-10
"""Time of addresses, conditions and barriers per element of a step's depth, in seconds. Fitted with
the constants of the cost model (docs/lab/estimates-on-gpus.md)."""
DEPENDENCY_SECONDS: Final = 8.8e-10
"""Latency of dependent instructions per element of a step's depth, in seconds. Fitted with the
constants of the cost model (docs/lab/estimates-on-gpus.md)."""
_GATHER_PRICE: Final = 1.3
"""Cost of loading an element of A, whose rows are scattered, relative to B. Fitted with the
constants of the cost model (docs/lab/estimates-on-gpus.md)."""
_TWO_IMAGE_GATHER_PRICE: Final = 2.3
"""The same relative cost if an element may belong to either of two images. Fitted with the
constants of the cost model (docs/lab/estimates-on-gpus.md)."""
_ELEMENTWISE_GATHER_PRICE: Final = 4.4
"""Additional factor if elements of A cannot be loaded as vectors. Fitted with the constants of the
cost model (docs/lab/estimates-on-gpus.md)."""
_REDUCE_SECONDS: Final = 8.3e-7
"""Fixed time of the launch that adds partial sums, in seconds. Fitted with the constants of the
cost model (docs/lab/estimates-on-gpus.md)."""
_SPLIT_SECONDS: Final = 1.7e-7
"""Additional time of that launch for each partial sum, in seconds. Fitted with the constants of the
cost model (docs/lab/estimates-on-gpus.md)."""
_LINE_BYTES: Final = 128
"""Size of a cache line in bytes."""
_REUSED_AREA: Final = 64 * 64
"""Elements of a tile at which the cost model's reuse factor is 1. Chosen without a measurement."""
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
_UNFITTED_PENALTY: Final = 1.01
"""Factor on the estimates of kernels that the cost model was not fitted to, relative to the best
tile: they are not chosen without measurements."""
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Extents of a product."""

    matrices: int
    rows: int
    columns: int
    depth: int
    dtype: DType
    """Element type of the operands."""
    adds: bool = False
    """Whether the epilogue reads a tensor."""
    run: int = 0
    """Elements of the depth that are contiguous (inner K); 0 for all of them."""
    image: int = 0
    """Elements of A if windows read them several times, else 0."""
    windows: bool = False
    """Whether windows have several taps, which may lie outside the image."""
    images: int = 1
    """Number of images whose windows are summed."""


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Parameters of a tiled product's tactic."""

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
        """Return the tactic; ``sum_bytes`` is the size of one partial sum of the whole result."""
        options = parameters(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
        needed_bytes = sum_bytes * self.split_k if self.split_k > 1 else 0
        return Tactic(
            family, options, inputs, (output,), workspace_bytes=needed_bytes, cost_hint=seconds
        )


def kernel_options(tactic: Tactic, *, prefetches_weights: bool = True) -> dict[str, Any]:
    """Return the kernel fields that follow from a tactic's parameters."""
    defaults = {
        "schedule": "tiled",
        "prefetches_weights": prefetches_weights,
        "split_k_partials": 1,
        "split_k_stride": 0,
    }
    return {**defaults, **tactic.options}


@functools.lru_cache(_CACHED_SHAPES)
def tiles_for(shape: GemmShape, target: CudaTarget) -> tuple[tuple[TileConfig, float], ...]:
    """Return the most promising tiles with their estimated seconds, best first.

    Results are cached because every family of products requests the same shapes repeatedly.
    """
    return tuple(_promising(shape, target))


def _promising(shape: GemmShape, target: CudaTarget) -> Iterator[tuple[TileConfig, float]]:
    """Yield the best tiles, with a limited number of similar ones."""
    ranked = [(estimate(shape, choice, target), choice) for choice in _tile_configs(shape, target)]
    ranked.sort(key=lambda pair: pair[0])
    similar: Counter[tuple[int, int, bool, bool]] = Counter()
    split_k_count = 0
    for seconds, choice in ranked:
        is_split = choice.split_k > 1
        kind = (*choice.tile[:2], choice.prefetches_epilogue, is_split)
        if similar[kind] == _MAX_SIMILAR_CANDIDATES or (
            is_split and split_k_count == _MAX_SPLIT_K_CANDIDATES
        ):
            continue
        similar[kind] += 1
        split_k_count += is_split
        yield choice, seconds
        if similar.total() == _MAX_CANDIDATES:
            return


def ranked_after_tiles(
    ranked: Iterable[tuple[float, ConfigT]], shape: GemmShape, target: CudaTarget
) -> Iterator[tuple[float, ConfigT]]:
    """Yield other kernels of a product, with estimates above the best tile's."""
    tiles = (seconds for choice, seconds in tiles_for(shape, target) if choice.split_k == 1)
    best = next(tiles, None)
    if best is None:
        return  # an empty reduction has no tiles
    for seconds, choice in ranked:
        yield _UNFITTED_PENALTY * max(seconds, best), choice


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
    tiles = shape.matrices * -(-shape.rows // tile[0]) * -(-shape.columns // tile[1])
    for split_k in (2, 3, 4, 6, 8):
        if (
            shape.matrices == 1
            and split_k * 2 <= steps
            and tiles * split_k <= 2 * target.multiprocessors
        ):
            yield split_k


def estimate(shape: GemmShape, choice: TileConfig, target: CudaTarget) -> float:
    """Return the estimated seconds of a product."""
    gpu, work = gpu_spec_of(target), _work(shape, choice, target)
    seconds = seconds_of(work, gpu)
    if choice.split_k > 1:
        seconds += split_k_reduce_seconds(shape, choice.split_k, work, gpu)
    return seconds


def split_k_reduce_seconds(
    shape: GemmShape, split_k: int, work: LaunchWorkload, gpu: GpuSpec
) -> float:
    """Return the estimated seconds of the launch that adds partial sums."""
    accumulators = split_k * shape.rows * shape.columns
    traffic_seconds = 2 * DType.FLOAT32.size_bytes * accumulators / l2_bytes_per_second(work, gpu)
    return _REDUCE_SECONDS + split_k * _SPLIT_SECONDS + traffic_seconds


def _work(shape: GemmShape, choice: TileConfig, target: CudaTarget) -> LaunchWorkload:
    """Return the workload of a product's programs."""
    bm, bn, bk = choice.tile
    size, is_split = shape.dtype.size_bytes, choice.split_k > 1
    row_tiles, column_tiles = -(-shape.rows // bm), -(-shape.columns // bn)
    programs = shape.matrices * row_tiles * column_tiles * choice.split_k
    steps = ceil(ceil(shape.depth / bk) / choice.split_k)
    epilogue_bytes = bm * bn * (size * (1 + shape.adds))
    step_bytes = (bm + bn) * bk * size
    a_bytes = size * (shape.image or shape.rows * shape.depth)
    columns = shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    padding_lines = (row_tiles * bm - shape.rows) * column_tiles + (
        column_tiles * bn - shape.columns
    ) * row_tiles
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
        epilogue_bytes=epilogue_bytes + (2 * bm * bn if is_split else 0),
        accumulators=bm * bn / (choice.num_warps * WARP_LANES),
        l2_read_bytes=float(programs) * (steps * step_bytes + epilogue_bytes),
        source_bytes=a_bytes,
        moved_bytes=shape.matrices * (a_bytes + size * columns),
        reuse=sqrt(sqrt(bm * bn / _REUSED_AREA)),
        # Rows and columns past the end all read the last line again.
        contended_bytes=float(steps) * padding_lines * _LINE_BYTES,
    )


def _gather_price(shape: GemmShape) -> float:
    """Return the cost of loading an element of A relative to one of B, which is contiguous."""
    scattered = _ELEMENTWISE_GATHER_PRICE if shape.run % MIN_VECTOR else 1.0
    return scattered * (_TWO_IMAGE_GATHER_PRICE if shape.images > 1 else _GATHER_PRICE)


def _registers(shape: GemmShape, choice: TileConfig) -> float:
    """Return the registers that a thread needs: sums, addresses, epilogue operands."""
    bm, bn, bk = choice.tile
    threads = choice.num_warps * WARP_LANES
    accumulators = bm * bn / threads
    registers = 28 + accumulators * (1.15 + 0.3 * shape.adds + 0.35 * choice.prefetches_epilogue)
    if choice.num_stages > 1:
        row = bk * shape.dtype.size_bytes / LOAD_BYTES / threads
        registers += row * (2 * (bm + bn) + 3 * bm * (shape.windows or shape.images > 1))
    return registers
