"""Cost model of products: the estimated time of each schedule, without a measurement.

Every estimate is a function of the sizes of the problem, the parameters of the schedule and the
figures of the GPU. Four schedules (tiled, prefetch, fused pair, depthwise) are described as a
`LaunchWorkload`, whose time `smelt.backends.cuda._cost_model` estimates. In the others a program
computes many tiles, for which that model has no terms.

The constants of tiled products were fitted together with those of `_cost_model`, to 5,900 measured
times of products on an H200. The other constants name their sources. Estimates that were not fitted
rank the candidates of one schedule only: `ProductFamily.unfitted_tactics` keeps them from being
chosen without measurements.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import (
    LAUNCH_SECONDS,
    LOAD_BYTES,
    WARP_LANES,
    LaunchWorkload,
    gpu_spec_of,
    l2_bytes_per_second,
    memory_seconds,
    pass_seconds,
    product_seconds,
    seconds_in_waves,
    seconds_of,
)
from smelt.backends.cuda._kernel_source import MIN_VECTOR
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends.cuda._cost_model import GpuSpec
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import (
        FusedPairShape,
        FusedPairTiles,
        GemmShape,
        TileConfig,
    )
    from smelt.ir import Node

ACCUMULATOR_BYTES: Final = DType.FLOAT32.size_bytes
"""Size of a partial sum in bytes."""

# ---- tiled
_STEP_OVERHEAD_SECONDS: Final = 4.5e-10
"""Time of addresses, conditions and barriers per element of a step's depth, in seconds. Fitted with
the constants of the cost model (docs/lab/estimates-on-gpus.md)."""
_DEPENDENCY_SECONDS: Final = 8.8e-10
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
"""Elements of a tile at which the reuse factor of the L2 cache is 1: the size to which the rates of
the cache are normalised. Chosen without a measurement."""

# ---- prefetch, with the fitted terms of tiled products
_PREFETCH_REGISTERS: Final = 40
"""Registers of a thread besides operands and sums: addresses and loop counters. No measurement is
recorded."""

# ---- persistent, for an H200
_PERSISTENT_FLOPS: Final = 6.8e14
"""Flop/s of the products of all multiprocessors together; less than the peak because a tile's
products wait for its first pixels. Chosen before this kernel ran on a GPU, and not fitted since."""
_SM_L2_BYTES_PER_SECOND: Final = 8.0e10
"""Maximum rate at which one multiprocessor reads from the L2 cache. 3x3 layers of ResNet-50 draw 60
to 85 GB/s on an H200 (docs/lab/products-on-gpus.md)."""
_SHARED_BYTES_PER_SECOND: Final = 2.1e11
"""Bandwidth of one multiprocessor's shared memory, in bytes per second. Chosen before this kernel
ran on a GPU, and not fitted since."""
_FRAGMENT: Final = (64, 16)
"""Rows and reduction step of one instruction, which reads both operands from shared memory."""
_PERSISTENT_TILE_SECONDS: Final = 5.0e-7
"""Time of a tile besides its products and loads (epilogue, barriers), in seconds. Chosen before
this kernel ran on a GPU, and not fitted since."""
_UNHIDDEN_SHARE: Final = 0.2
"""Share of the shorter of two overlapping activities that is not hidden. Chosen before this kernel
ran on a GPU, and not fitted since."""

# ---- window reuse
_TENSOR_CORE_SHARE: Final = 0.8
"""Share of the tensor cores' peak rate that undisturbed products reach. No measurement is
recorded."""
_FETCH_SECONDS: Final = 1.0e-6
"""Latency of loading a weight tile, in seconds. No measurement is recorded."""
_END_SECONDS: Final = 1.4e-6
"""Time of a program before its first and after its last product, in seconds. No measurement is
recorded."""
_SUM_SECONDS: Final = 1.1e-8
"""Additional time at a program's end for each sum of a thread, in seconds. No measurement is
recorded."""

# ---- stems
_COPIED_BYTES: Final = 6
"""Memory traffic of the copy per element in bytes: four read, two written."""
_STEM_TILE_SECONDS: Final = 2.0e-7
"""Fixed time of a tile, in seconds. With `_STEM_ELEMENT_SECONDS` and windows of 224 elements the
estimates of ResNet-50's stem with its copy are 3.4, 40 and 153 µs at batches 1, 32 and 128; an H200
took 4.3, 38 and 146 µs (docs/lab/products-on-gpus.md)."""
_STEM_ELEMENT_SECONDS: Final = 1.8e-9
"""Time of a tile per element of a window, in seconds. `_STEM_TILE_SECONDS` names the
measurement."""
_FEWER_PROGRAMS_PENALTY: Final = 1.1
"""Factor on the time of the tiles with one program fewer per multiprocessor. No measurement is
recorded."""
_MEASURED_WINDOW_ELEMENTS: Final = 224
"""Elements of a window for which the next two constants were measured. For shorter windows, half of
the time is assumed to be independent of the length. It is the length of the windows of ResNet-50's
stem: seven rows of eight pixels with four channels."""
_POOL_TILE_SECONDS: Final = 4.5e-7
"""Fixed time of a tile of a stem that is pooled, in seconds. Measured; the conditions are not
recorded."""
_CONCURRENT_TILE_SECONDS: Final = 2.8e-7
"""Additional time of such a tile for each program that runs at the same time, in seconds. Measured;
the conditions are not recorded."""

# ---- fused pairs
_WHOLE_CORRECTION: Final = 1.12
"""Factor on the estimate with all columns of the first product in a tile; fitted to 24 fused pairs
on an H200, with `_BLOCKED_CORRECTION`."""
_BLOCKED_CORRECTION: Final = 1.25
"""Factor on the estimate with the first product's columns in blocks. Fitted to the same pairs as
`_WHOLE_CORRECTION`."""
_TWO_STAGE_PENALTY: Final = 1.15
"""Additional factor with two pipeline stages: the next step's loads are issued only after the
previous step is done. Chosen without a measurement."""

# ---- depthwise and deconvolution
_DEPTHWISE_REGISTERS: Final = (26, 38)
"""Registers of a thread: fixed, and for each 1,024 elements of a program. No measurement is
recorded."""
_DEPTHWISE_INSTRUCTIONS: Final = 3
"""Instructions per multiplication: the product and two conversions. Chosen without a
measurement."""
_DECONVOLUTION_FLOPS: Final = 1.0e13
"""Assumed flop/s of transposed convolutions, most of whose taps are masked. Chosen without a
measurement: there is one candidate, which nothing is compared with."""


# ---- tiled products


def tiled_seconds(shape: GemmShape, config: TileConfig, gpu: GpuSpec) -> float:
    """Return the time of a product with one program for each tile and split, in seconds."""
    work = _tiled_work(shape, config, gpu)
    return seconds_of(work, gpu) + _split_k_reduce_seconds(shape, config, work, gpu)


def _split_k_reduce_seconds(
    shape: GemmShape, config: TileConfig, work: LaunchWorkload, gpu: GpuSpec
) -> float:
    """Return the time of the launch that adds partial sums, in seconds; 0 without split-K."""
    if config.split_k == 1:
        return 0.0
    accumulators = config.split_k * shape.rows * shape.columns
    traffic_seconds = 2 * ACCUMULATOR_BYTES * accumulators / l2_bytes_per_second(work, gpu)
    return _REDUCE_SECONDS + config.split_k * _SPLIT_SECONDS + traffic_seconds


def _tiled_work(shape: GemmShape, config: TileConfig, gpu: GpuSpec) -> LaunchWorkload:
    """Return the workload of a tiled product's programs."""
    (bm, bn, bk), size = config.tile, shape.size
    row_tiles, column_tiles = -(-shape.rows // bm), -(-shape.columns // bn)
    programs = shape.matrices * row_tiles * column_tiles * config.split_k
    steps = ceil(ceil(shape.depth / bk) / config.split_k)
    epilogue_bytes = bm * bn * (size * (1 + shape.adds))
    step_bytes = (bm + bn) * bk * size
    a_bytes = size * shape.a_elements
    columns = shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    padding_lines = (row_tiles * bm - shape.rows) * column_tiles
    padding_lines += (column_tiles * bn - shape.columns) * row_tiles
    return LaunchWorkload(
        programs=programs,
        num_warps=config.num_warps,
        registers=_tiled_registers(shape, config),
        shared_bytes=config.num_stages * step_bytes,
        steps=steps,
        num_stages=config.num_stages,
        step_seconds=product_seconds(
            config.tile, config.num_warps, shape.dtype, config.input_precision, gpu
        ),
        step_overhead_seconds=_STEP_OVERHEAD_SECONDS * bk,
        dependency_seconds=_DEPENDENCY_SECONDS * bk,
        step_bytes=bk * size * (bm * _gather_price(shape) + bn),
        epilogue_bytes=epilogue_bytes + (2 * bm * bn if config.split_k > 1 else 0),
        accumulators=bm * bn / config.threads,
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
    return scattered * (_TWO_IMAGE_GATHER_PRICE if shape.summed_images > 1 else _GATHER_PRICE)


def _tiled_registers(shape: GemmShape, config: TileConfig) -> float:
    """Return the registers that a thread needs: sums, addresses, epilogue operands."""
    bm, bn, bk = config.tile
    accumulators = bm * bn / config.threads
    registers = 28 + accumulators * (1.15 + 0.3 * shape.adds + 0.35 * config.prefetches_epilogue)
    if config.num_stages > 1:
        row = bk * shape.size / LOAD_BYTES / config.threads
        registers += row * (2 * (bm + bn) + 3 * bm * (shape.windows or shape.summed_images > 1))
    return registers


# ---- products whose weights are loaded before the PDL wait


def prefetched_registers(shape: GemmShape, config: TileConfig) -> float:
    """Return the registers of a thread of the prefetch schedule, which holds both operands."""
    (bm, bn, _), adds = config.tile, shape.adds and config.split_k == 1
    depth = shape.depth // config.split_k
    elements = (bm + bn) * depth / 2 + bm * bn * (1 + adds / 2)
    return _PREFETCH_REGISTERS + elements / config.threads


def prefetched_seconds(shape: GemmShape, config: TileConfig, gpu: GpuSpec) -> float:
    """Return the time of a product whose weights are already loaded, in seconds."""
    (bm, bn, _), size, split_k = config.tile, shape.size, config.split_k
    programs = -(-shape.rows // bm) * -(-shape.columns // bn) * split_k
    depth, a_elements = shape.depth // split_k, shape.rows * shape.depth
    result_bytes = size * (1 + shape.adds) if split_k == 1 else ACCUMULATOR_BYTES
    epilogue_bytes = bm * bn * result_bytes
    work = LaunchWorkload(
        programs=programs,
        num_warps=config.num_warps,
        registers=prefetched_registers(shape, config),
        shared_bytes=(bm + bn) * depth * size,
        step_seconds=product_seconds(
            (bm, bn, depth), config.num_warps, shape.dtype, config.input_precision, gpu
        ),
        step_bytes=float(bm * depth * size),
        epilogue_bytes=float(epilogue_bytes),
        accumulators=bm * bn / config.threads,
        l2_read_bytes=float(programs) * ((bm + bn) * depth * size + epilogue_bytes),
        source_bytes=float(size * shape.a_elements),
        moved_bytes=float(size * (a_elements + shape.columns * (shape.depth + shape.rows))),
    )
    return seconds_of(work, gpu) + _split_k_reduce_seconds(shape, config, work, gpu)


# ---- persistent products


def persistent_seconds(
    shape: GemmShape, config: TileConfig, programs_per_sm: int, gpu: GpuSpec
) -> float:
    """Return the time of a product by programs that keep their weights, in seconds."""
    (bm, bn, _), size = config.tile, shape.size
    fragment_rows, fragment_depth = _FRAGMENT
    products_seconds = 2.0 * bm * bn * shape.depth * gpu.multiprocessors / _PERSISTENT_FLOPS
    extra = bm * bn * shape.adds
    load_seconds = (bm * shape.depth + extra) * size / _SM_L2_BYTES_PER_SECOND
    fragments = bm // fragment_rows * (shape.depth // fragment_depth)
    operand_elements = fragments * (fragment_rows + bn) * fragment_depth
    shared_elements = operand_elements + bm * shape.depth + 2 * extra + 2 * bm * bn
    shared_seconds = shared_elements * size / _SHARED_BYTES_PER_SECOND
    tile_seconds = max(products_seconds, load_seconds, shared_seconds)
    row_tiles = -(-shape.rows // bm)
    tiles_per_program = -(-row_tiles // config.row_programs)
    program_seconds = tiles_per_program * max(
        programs_per_sm * tile_seconds, products_seconds + _PERSISTENT_TILE_SECONDS
    )
    result_elements = shape.rows * (1 + shape.adds)
    moved_elements = shape.a_elements + shape.columns * (shape.depth + result_elements)
    moving_seconds = moved_elements * size / gpu.memory_bytes_per_second
    weight_seconds = programs_per_sm * bn * shape.depth * size / _SM_L2_BYTES_PER_SECOND
    unhidden_seconds = _UNHIDDEN_SHARE * min(program_seconds, moving_seconds)
    fixed_seconds = LAUNCH_SECONDS + weight_seconds
    return fixed_seconds + max(program_seconds, moving_seconds) + unhidden_seconds


# ---- windows that share their pixels


def window_reuse_seconds(
    shape: GemmShape,
    config: TileConfig,
    gpu: GpuSpec,
    *,
    steps: int,
    programs: int,
    programs_per_sm: int,
) -> float:
    """Return the time of a convolution whose windows slide over shared memory, in seconds."""
    bm, bn, bk = config.tile
    flops = gpu.tensor_flops * _TENSOR_CORE_SHARE
    step_seconds = 2.0 * bm * bn * bk * gpu.multiprocessors / flops
    program_seconds = steps * max(step_seconds, _FETCH_SECONDS / (config.num_stages - 2))
    end_seconds = _END_SECONDS + _SUM_SECONDS * bm * bn / config.threads

    def wave_seconds(concurrent: int) -> float:
        return max(concurrent * steps * step_seconds, program_seconds) + end_seconds

    moved_bytes = (shape.image + shape.rows * shape.columns) * shape.size
    products_seconds = seconds_in_waves(programs, programs_per_sm, gpu, wave_seconds)
    return LAUNCH_SECONDS + max(products_seconds, moved_bytes / gpu.memory_bytes_per_second)


# ---- stems


def stem_copy_seconds(elements: int, target: CudaTarget, bytes_each: int = _COPIED_BYTES) -> float:
    """Return the time of the launch that writes a stem's pixels, in seconds."""
    return pass_seconds(elements * bytes_each, target)


def register_operand_seconds(
    shape: GemmShape, length: int, tiles: int, target: CudaTarget, *, has_full_occupancy: bool
) -> float:
    """Return the time of a stem's copy and its product with pixels in registers, in seconds.

    Args:
        shape: sizes of the product.
        length: elements of a window as read.
        tiles: number of tiles of the result.
        target: GPU.
        has_full_occupancy: whether as many programs run on a multiprocessor as fit.
    """
    fixed_seconds = LAUNCH_SECONDS + stem_copy_seconds(shape.image, target)
    tile_seconds = _STEM_TILE_SECONDS + length * _STEM_ELEMENT_SECONDS
    tiles_seconds = ceil(tiles / target.multiprocessors) * tile_seconds
    return fixed_seconds + tiles_seconds * (1.0 if has_full_occupancy else _FEWER_PROGRAMS_PENALTY)


def stem_pool_seconds(
    image: int, length: int, tiles: int, programs: int, programs_per_sm: int, target: CudaTarget
) -> float:
    """Return the time of a stem's copy and its product with pooling, in seconds.

    Args:
        image: elements of the input.
        length: elements of a window as read.
        tiles: tiles of the stem that each program computes one after another.
        programs: number of programs.
        programs_per_sm: programs that run on a multiprocessor at once.
        target: GPU.
    """

    def wave_seconds(concurrent: int) -> float:
        return _POOL_TILE_SECONDS + concurrent * _CONCURRENT_TILE_SECONDS

    tile_seconds = seconds_in_waves(programs, programs_per_sm, gpu_spec_of(target), wave_seconds)
    length_factor = (1 + length / _MEASURED_WINDOW_ELEMENTS) / 2
    copy_seconds = stem_copy_seconds(image, target)
    return LAUNCH_SECONDS + copy_seconds + tiles * length_factor * tile_seconds


# ---- fused pairs


def fused_pair_seconds(pair: FusedPairShape, config: FusedPairTiles, gpu: GpuSpec) -> float:
    """Return the time of two products in one launch, in seconds."""
    is_whole = config.keeps_columns(pair)
    correction = _WHOLE_CORRECTION if is_whole else _BLOCKED_CORRECTION
    stage_penalty = _TWO_STAGE_PENALTY if config.num_stages == 2 else 1.0
    return seconds_of(_fused_pair_work(pair, config, gpu), gpu) * correction * stage_penalty


def _fused_pair_work(pair: FusedPairShape, config: FusedPairTiles, gpu: GpuSpec) -> LaunchWorkload:
    """Return the workload of a fused pair's programs."""
    shape, size, second_tile = pair.first, pair.first.size, config.second_tile
    (bm, bn, bk), is_whole = config.tile, config.keeps_columns(pair)
    threads = config.num_warps * WARP_LANES
    steps = -(-shape.depth // bk)
    loop_steps, depth = (steps, bk) if is_whole else (-(-shape.columns // bn), shape.depth + bn)
    down, across = -(-shape.rows // bm), -(-pair.columns // second_tile)
    step_bytes, epilogue_bytes = _fused_pair_bytes(pair, config, steps, across)
    pixel_bytes = 0 if is_whole else bm * shape.depth * size
    row_elements = shape.columns * (pair.returns_intermediate + shape.adds)
    row_elements += pair.columns * (1 + pair.adds)
    accumulators = bm * (bn * (1 + shape.adds / 2) + second_tile)
    program_bytes = loop_steps * step_bytes + epilogue_bytes + pixel_bytes
    return LaunchWorkload(
        programs=down * across,
        num_warps=config.num_warps,
        registers=40 + 1.1 * accumulators / threads,
        shared_bytes=config.prefetched_bytes(pair, shape.depth),
        steps=loop_steps,
        num_stages=config.num_stages,
        step_seconds=_fused_pair_step_seconds(pair, config, steps, gpu),
        step_overhead_seconds=_STEP_OVERHEAD_SECONDS * depth,
        dependency_seconds=_DEPENDENCY_SECONDS * depth,
        step_bytes=step_bytes,
        epilogue_bytes=epilogue_bytes,
        accumulators=bm * (second_tile + bn) / threads,
        l2_read_bytes=float(down * across * program_bytes),
        source_bytes=float(size * shape.a_elements),
        moved_bytes=float(size * (shape.a_elements + shape.rows * row_elements)),
    )


def _fused_pair_step_seconds(
    pair: FusedPairShape, config: FusedPairTiles, steps: int, gpu: GpuSpec
) -> float:
    """Return the time that a step's products keep a multiprocessor busy, in seconds."""
    (bm, bn, _), dtype = config.tile, pair.first.dtype
    first = product_seconds(config.tile, config.num_warps, dtype, "ieee", gpu)
    second_tile = (bm, config.second_tile, bn)
    second = product_seconds(second_tile, config.num_warps, dtype, "ieee", gpu)
    return first + second / steps if config.keeps_columns(pair) else steps * first + second


def _fused_pair_bytes(
    pair: FusedPairShape, config: FusedPairTiles, steps: int, across: int
) -> tuple[float, float]:
    """Return the bytes that a step loads, and the bytes of a program's epilogue."""
    shape, (bm, bn, bk), second_tile = pair.first, config.tile, config.second_tile
    is_whole, size = config.keeps_columns(pair), pair.first.size
    if is_whole:
        step = bk * (bm + bn) + bn * second_tile / steps
    else:
        step = bn * (shape.depth + second_tile + bm * shape.adds)
    epilogue_elements = (
        bm * second_tile * (1 + pair.adds) + bm * shape.columns * pair.returns_intermediate / across
    )
    return size * step, size * (epilogue_elements + bm * shape.columns * shape.adds * is_whole)


# ---- depthwise convolution and deconvolution


def depthwise_seconds(shape: GemmShape, config: TileConfig, gpu: GpuSpec) -> float:
    """Return the time of a convolution with one filter per channel, in seconds.

    Each channel is a product of its own, of one column, and the depth are the taps of a window.
    """
    (rows, columns, _), size, channels = config.tile, shape.size, shape.matrices
    elements = rows * columns
    programs = -(-shape.rows // rows) * -(-channels // columns)
    read_bytes, written_bytes = (size * channels * n for n in (shape.image, shape.rows))
    fixed_registers, registers_per_1024 = _DEPTHWISE_REGISTERS
    flops = gpu.cuda_core_flops / gpu.multiprocessors
    work = LaunchWorkload(
        programs=programs,
        num_warps=config.num_warps,
        registers=fixed_registers + registers_per_1024 * elements / 1024,
        step_seconds=2.0 * _DEPTHWISE_INSTRUCTIONS * (shape.depth * elements) / flops,
        step_bytes=size * shape.depth * elements,
        epilogue_bytes=size * elements,
        accumulators=elements / config.threads,
        l2_read_bytes=float(programs) * elements * 2 * size,
        source_bytes=read_bytes,
        moved_bytes=read_bytes + written_bytes,
    )
    return seconds_of(work, gpu)


def deconvolution_seconds(node: Node, products: int, target: CudaTarget) -> float:
    """Return the time of a transposed convolution of so many multiplications, in seconds."""
    return memory_seconds(node, target) + 2.0 * products / _DECONVOLUTION_FLOPS
