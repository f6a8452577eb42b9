"""Cost model of GPU launches, used when tactics cannot be timed.

A multiprocessor runs as many programs at once as their registers and shared memory allow. A launch
runs its programs in such *waves*; the last wave may be nearly empty. A wave lasts as long as one
program alone, or as long as all of its programs keep the multiprocessor busy, whichever is longer.
Traffic through the L2 cache and memory is added to that.

Constants without a source of their own were fitted to 5,900 measured times of products on an H200;
the ranking of tactics is judged by the same times. Other GPUs differ by their published data.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import TYPE_CHECKING, Final

from smelt.devices.cuda import SM_RESOURCES
from smelt.types import DType, guessed_extent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.devices.cuda import SmResources
    from smelt.ir import Node, Value

WARP_LANES: Final = 32
"""Threads of a warp."""
LAUNCH_SECONDS: Final = 8.9e-7
"""Fixed time of a launch, in seconds; fitted."""
_NEXT_PROGRAM_SECONDS: Final = 3.9e-7
"""Time until a program of a later wave issues its first loads, in seconds; fitted."""
_L2_LATENCY_SECONDS: Final = 1.6e-7
"""Latency of a load from the L2 cache, in seconds; fitted."""
_MEMORY_LATENCY_SECONDS: Final = 9.4e-7
"""Latency of a load from memory under load, in seconds; fitted."""
_SM_LOAD_BYTES_PER_SECOND: Final = 1.9e11
"""Rate at which a multiprocessor loads elements; fitted."""
_EPILOGUE_BYTES_PER_SECOND: Final = 2.8e10
"""Rate at which a multiprocessor writes results and reads the operands of their epilogue;
fitted."""
_ACCUMULATOR_SECONDS: Final = 6.0e-9
"""Time at the end of a program for each accumulator of a thread, in seconds; fitted."""
_WARP_GROUPS_SYNC_SECONDS: Final = 2.2e-8
"""Time to synchronise more than one warp group in a step, in seconds; fitted."""
_WARPS_PER_GROUP: Final = 4
"""Warps of a warp group."""
_L2_BYTES_PER_SECOND: Final = 2.95e10
"""L2 bandwidth per multiprocessor in the limit of a very small source; fitted. It grows with the
square root of the source's bytes, because all programs read the same few lines of a small
source."""
_L2_STREAM_BYTES_PER_SECOND: Final = 5.1e10
"""L2 bandwidth per multiprocessor for elements that are read once and are in the cache; fitted."""
_L2_SOURCE_BYTES: Final = 1e6
"""Size of a source at which the L2 bandwidth is twice `_L2_BYTES_PER_SECOND`, in bytes. Chosen
without a measurement of its own: the rate was fitted with it."""
_L2_LINE_BYTES_PER_SECOND: Final = 5.9e11
"""L2 bandwidth of one line that all programs read; fitted."""
_OUTSTANDING_LOADS: Final = 8
"""Loads of a thread in flight at once without software prefetch; fitted."""
LOAD_BYTES: Final = 16
"""Maximum bytes that a thread loads with one instruction."""
_SPILL_PENALTY: Final = 2.3
"""Relative increase of a step's time per register file share that exceeds the limit; fitted."""
_OVERLAP: Final = 3.0
"""Exponent by which concurrent work on a multiprocessor overlaps (1: not at all); fitted."""
_L2_OVERLAP: Final = 2.0
"""Exponent by which multiprocessors and the L2 cache overlap (1: not at all); fitted."""
MAX_REGISTERS_PER_THREAD: Final = 255
"""Maximum number of registers of a thread."""
_MIN_REGISTERS: Final = 32
"""Minimum number of registers per thread that the model assumes. Chosen without a measurement."""
_TF32_SHARE: Final = {"tf32": 0.5, "tf32x3": 0.17}
"""Throughput of tensor cores in TF32 relative to 16-bit types. By NVIDIA's data sheets tf32 has
half the rate of 16-bit types; tf32x3 multiplies three times, which is a sixth."""
_SMALL_TILE_MMA_SHARE: Final = 0.22
"""Throughput of the warp-level MMA instructions, which small tiles use on GPUs with warp-group
instructions, relative to the peak; fitted."""
_LEGACY_MMA_SHARE: Final = 0.85
"""Throughput of warp-level MMA on GPUs without warp-group instructions, relative to the peak.
Chosen without a measurement: no such GPU was measured."""
_CUDA_CORE_SHARE: Final = 0.62
"""Throughput of CUDA cores with many accumulators, relative to the peak; fitted."""
_CUDA_CORE_ACCUMULATORS: Final = 4.0
"""Accumulators per thread at which half of `_CUDA_CORE_SHARE` is reached: with more, a thread loads
fewer operands for each. Chosen without a measurement of its own: the share was fitted with it."""
_SHARED_READ_BYTES_PER_SECOND: Final = 2.25e11
"""Rate at which tensor cores read a multiprocessor's shared memory; fitted."""
_WIDE_MMA_ROWS: Final = 64
"""Rows of a warp-group MMA instruction."""
_MIN_EXTENT: Final = 16
"""Minimum extent of a tile on tensor cores."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Resources and peak rates of a GPU."""

    multiprocessors: int
    tensor_flops: float
    """Flop/s of tensor cores with 16-bit operands and 32-bit sums."""
    cuda_core_flops: float
    """Flop/s of CUDA cores in float32."""
    memory_bytes_per_second: float
    """Bandwidth of memory."""
    l2_bytes: float
    """Size of the L2 cache."""
    wide_mma_rows: int
    """Rows of a warp-group MMA instruction, or 0. Smaller tiles use the slower warp-level
    instructions."""
    limits: SmResources
    """Resources of a multiprocessor."""


_DATA_SHEETS: Final = {
    75: (40, 65, 8.1, 320, 4),  # T4
    80: (108, 312, 19.5, 2039, 40),  # A100
    86: (72, 125, 31.2, 600, 6),  # A10
    87: (16, 43, 5.3, 205, 4),  # Orin
    89: (142, 362, 91.6, 864, 96),  # L40S
    90: (132, 989, 67, 4300, 50),  # H200, memory bandwidth as measured
    100: (148, 2250, 75, 8000, 126),  # B200
    103: (148, 2500, 75, 8000, 126),  # B300
    110: (20, 259, 8.1, 273, 32),  # Thor
    120: (188, 504, 125, 1792, 128),  # RTX PRO 6000
    121: (48, 125, 31, 273, 24),  # GB10
}
"""Largest common GPU of each architecture by its data sheet: multiprocessors, dense 16-bit TFLOP/s
of tensor cores, float32 TFLOP/s without them, memory bandwidth in GB/s, L2 cache in MB."""
_WITH_WIDE_MMA: Final = {90, 100, 103, 110}
"""Architectures with warp-group MMA instructions."""


def multiprocessors_of(capability: int) -> int:
    """Return the number of multiprocessors of the largest common GPU of an architecture."""
    return _DATA_SHEETS[capability][0]


def gpu_spec_of(target: CudaTarget) -> GpuSpec:
    """Return the GPU of a target: its oldest architecture, whose tactics run on all of them."""
    sheet = _DATA_SHEETS[target.capability]
    multiprocessors, tensor_tflops, cuda_core_tflops, memory_gbytes, l2_mbytes = sheet
    share = target.multiprocessors / multiprocessors
    return GpuSpec(
        multiprocessors=target.multiprocessors,
        tensor_flops=tensor_tflops * 1e12 * share,
        cuda_core_flops=cuda_core_tflops * 1e12 * share,
        memory_bytes_per_second=memory_gbytes * 1e9,
        l2_bytes=l2_mbytes * 1e6,
        wide_mma_rows=_WIDE_MMA_ROWS if target.capability in _WITH_WIDE_MMA else 0,
        limits=SM_RESOURCES[target.capability],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWorkload:
    """Workload of a launch: what each program does, and the memory that it reads and writes."""

    programs: int
    num_warps: int
    registers: float
    """Registers that a thread needs; more than the limit are spilled."""
    shared_bytes: int = 0
    steps: int = 1
    """Sequential steps of a program's main loop."""
    num_stages: int = 1
    """Steps whose elements are in flight; 1 without prefetch."""
    step_seconds: float
    """Time that the arithmetic of a step keeps a multiprocessor busy, in seconds."""
    step_overhead_seconds: float = 0.0
    """Time that all other work of a step keeps a multiprocessor busy, in seconds."""
    dependency_seconds: float = 0.0
    """Latency of the dependent instructions of a step, which other programs cannot hide, in
    seconds."""
    step_bytes: float
    """Bytes that a step loads, weighted by the cost of their addresses."""
    epilogue_bytes: float
    """Bytes that a program writes, and reads for its epilogue."""
    accumulators: float
    """Accumulators per thread."""
    l2_read_bytes: float
    """Bytes that all programs together read through the L2 cache."""
    source_bytes: float
    """Size of the operands that several programs read, in bytes."""
    moved_bytes: float
    """Size of all operands and results, each counted once, in bytes."""
    reuse: float = 1.0
    """Factor on the L2 bandwidth if programs use more of each line."""
    contended_bytes: float = 0.0
    """Bytes of lines that all programs read one after another."""


def seconds_of(workload: LaunchWorkload, gpu: GpuSpec) -> float:
    """Return the estimated time of a launch in seconds."""
    if workload.source_bytes > gpu.l2_bytes / 2:
        latency, rate = _MEMORY_LATENCY_SECONDS, gpu.memory_bytes_per_second
    else:
        latency, rate = _L2_LATENCY_SECONDS, gpu.multiprocessors * _L2_STREAM_BYTES_PER_SECOND
    programs_seconds = _programs_seconds(workload, gpu, latency)
    traffic_seconds = max(
        workload.l2_read_bytes / l2_bytes_per_second(workload, gpu), workload.moved_bytes / rate
    )
    contention_seconds = workload.contended_bytes / _L2_LINE_BYTES_PER_SECOND
    return LAUNCH_SECONDS + _overlapped_seconds(
        _overlapped_seconds(programs_seconds, traffic_seconds, _L2_OVERLAP), contention_seconds
    )


def l2_bytes_per_second(workload: LaunchWorkload, gpu: GpuSpec) -> float:
    """Return the L2 bandwidth of all programs together, in bytes per second."""
    scale = 1 + sqrt(workload.source_bytes / _L2_SOURCE_BYTES)
    return gpu.multiprocessors * _L2_BYTES_PER_SECOND * scale * workload.reuse


def _programs_seconds(work: LaunchWorkload, gpu: GpuSpec, latency: float) -> float:
    """Return the time of all waves in seconds, if the L2 cache and memory are not the limit."""
    spill_factor = 1 + _SPILL_PENALTY * max(0.0, work.registers / MAX_REGISTERS_PER_THREAD - 1)
    load_seconds = work.step_bytes / _SM_LOAD_BYTES_PER_SECOND
    busy_seconds = _overlapped_seconds(work.step_seconds, load_seconds)
    step_seconds = (busy_seconds + work.step_overhead_seconds) * spill_factor
    if work.num_warps > _WARPS_PER_GROUP:
        step_seconds += _WARP_GROUPS_SYNC_SECONDS * spill_factor
    epilogue_seconds = work.epilogue_bytes / _EPILOGUE_BYTES_PER_SECOND
    program_seconds = _ACCUMULATOR_SECONDS * work.accumulators + epilogue_seconds
    program_seconds += work.steps * _overlapped_seconds(step_seconds, _latency(work, latency))
    if work.num_stages > 1:
        program_seconds += latency

    def wave_seconds(programs: int, start: float) -> float:
        busy_seconds = programs * (work.steps * step_seconds + epilogue_seconds)
        return _overlapped_seconds(busy_seconds, start + program_seconds)

    programs_per_sm = _programs_per_sm(work, gpu)
    programs_on_busiest_sm = ceil(work.programs / gpu.multiprocessors)
    if programs_on_busiest_sm <= programs_per_sm:
        return wave_seconds(programs_on_busiest_sm, 0.0)
    waves = ceil(work.programs / (programs_per_sm * gpu.multiprocessors))
    last_wave_programs = work.programs - (waves - 1) * programs_per_sm * gpu.multiprocessors
    last_wave = wave_seconds(ceil(last_wave_programs / gpu.multiprocessors), _NEXT_PROGRAM_SECONDS)
    middle_wave = wave_seconds(programs_per_sm, _NEXT_PROGRAM_SECONDS)
    return wave_seconds(programs_per_sm, 0.0) + (waves - 2) * middle_wave + last_wave


def seconds_in_waves(
    programs: int, programs_per_sm: int, gpu: GpuSpec, wave_seconds: Callable[[int], float]
) -> float:
    """Return the time of all waves in seconds.

    ``wave_seconds`` returns the time of a wave by the programs that run on a multiprocessor.
    """
    waves, remaining = divmod(programs, programs_per_sm * gpu.multiprocessors)
    last_wave = wave_seconds(ceil(remaining / gpu.multiprocessors)) if remaining else 0.0
    return waves * wave_seconds(programs_per_sm) + last_wave


def _latency(work: LaunchWorkload, latency: float) -> float:
    """Return the minimum time of a step in seconds, however busy the multiprocessor is."""
    if work.num_stages > 1:
        load_seconds = latency / max(1, min(work.num_stages - 1, work.steps))
        # With two stages no load overlaps the arithmetic.
        slack = work.step_seconds if work.num_stages == 2 else 0.0
        return max(load_seconds, work.dependency_seconds + slack)
    loads = work.step_bytes / (LOAD_BYTES * WARP_LANES * work.num_warps)
    load_seconds = latency * max(1.0, loads / _OUTSTANDING_LOADS)
    return load_seconds + work.dependency_seconds + work.step_seconds


def _programs_per_sm(work: LaunchWorkload, gpu: GpuSpec) -> int:
    """Return how many programs a multiprocessor runs at once."""
    registers = ceil(min(max(work.registers, _MIN_REGISTERS), MAX_REGISTERS_PER_THREAD))
    threads = work.num_warps * WARP_LANES
    return max(1, gpu.limits.resident_blocks(threads, registers, work.shared_bytes)[0])


def _overlapped_seconds(a: float, b: float, overlap: float = _OVERLAP) -> float:
    """Return the time of two activities that overlap, by a p-norm: near the longer one."""
    return float((a**overlap + b**overlap) ** (1 / overlap))


def product_seconds(
    tile: tuple[int, int, int], num_warps: int, dtype: DType, precision: str, gpu: GpuSpec
) -> float:
    """Return the time in seconds that an M by N by K tile product takes on a multiprocessor."""
    bm, bn, bk = tile
    flops = 2.0 * bm * bn * bk * gpu.multiprocessors
    if dtype is DType.FLOAT32 and precision == "ieee":
        accumulators = bm * bn / (num_warps * WARP_LANES)
        rate = gpu.cuda_core_flops * _CUDA_CORE_SHARE * accumulators
        return flops / (rate / (accumulators + _CUDA_CORE_ACCUMULATORS))
    rate = gpu.tensor_flops * _TF32_SHARE.get(precision, 1.0)
    if not gpu.wide_mma_rows:
        return flops / (rate * _LEGACY_MMA_SHARE)
    if bm < gpu.wide_mma_rows:
        return flops / (rate * _SMALL_TILE_MMA_SHARE)
    shared_bytes = -(-bm // _WIDE_MMA_ROWS) * (_WIDE_MMA_ROWS + bn) * bk * dtype.size_bytes
    return max(flops / rate, shared_bytes / _SHARED_READ_BYTES_PER_SECOND)


def next_power_of_two(value: int) -> int:
    """Return the least power of two that is at least ``value``, as tiles require."""
    return 1 << max(0, value - 1).bit_length()


def parts_of(count: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (first, size) of the parts of a count: powers of two up to a limit, largest first."""
    first = 0
    while first < count:
        size = min(limit, 1 << (count - first).bit_length() - 1)
        yield first, size
        first += size


def tile_extent(value: int) -> int:
    """Return the least tile extent for tensor cores that is at least ``value``."""
    return max(_MIN_EXTENT, next_power_of_two(value))


def count_of(value: Value) -> int:
    """Return the number of elements of a tensor, with a guess for each symbol."""
    return prod(map(guessed_extent, value.tensor.shape))


def memory_seconds(node: Node, target: CudaTarget) -> float:
    """Return the time in seconds of a launch that reads and writes each tensor once."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return pass_seconds(sum(count_of(v) * v.tensor.dtype.size_bytes for v in values), target)


def pass_seconds(moved_bytes: float, target: CudaTarget) -> float:
    """Return the time in seconds of a launch that moves bytes and computes almost nothing."""
    seconds = moved_bytes / gpu_spec_of(target).memory_bytes_per_second
    return LAUNCH_SECONDS + _L2_LATENCY_SECONDS + seconds
