"""What a launch costs on a GPU when there is none to time it.

A multiprocessor runs as many programs beside each other as their registers and shared memory allow;
the launch goes through all programs in such *waves*, of which the last may be nearly empty. A wave
lasts as long as one program would alone, or as all of its programs keep the multiprocessor busy,
whichever is longer. Beside that stands the way through the second-level cache and memory.

Constants without a source of their own were fitted to 5,900 times of products on an H200, which is
what ranks are judged by; other GPUs differ by what is public of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import TYPE_CHECKING, Final

from smelt.devices.cuda import SM_RESOURCES
from smelt.types import DType, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from smelt.backends.cuda._target import CudaTarget
    from smelt.devices.cuda import SmResources
    from smelt.ir import Node, Value
    from smelt.types import Dim

WARP_LANES: Final = 32
LAUNCH_SECONDS: Final = 8.9e-7
_NEXT_PROGRAM_SECONDS: Final = 3.9e-7
"""Until a program that follows another asks for its first elements."""
_L2_LATENCY_SECONDS: Final = 1.6e-7
"""From asking for elements to having them, from the second-level cache."""
_MEMORY_LATENCY_SECONDS: Final = 9.4e-7
"""The same from memory, under load."""
_SM_LOAD_BYTES_PER_SECOND: Final = 1.9e11
"""What a multiprocessor takes in."""
_EPILOGUE_BYTES_PER_SECOND: Final = 2.8e10
"""At which a multiprocessor writes results, and reads what is added to them."""
_ACCUMULATOR_SECONDS: Final = 6.0e-9
"""Of a program's end, for each element that a thread holds."""
_WARP_GROUPS_SYNC_SECONDS: Final = 2.2e-8
"""Of a step that more than one group of warps waits for."""
_WARPS: Final = 4
_L2_BYTES_PER_SECOND: Final = 2.95e10
"""Through the second-level cache for each multiprocessor, of a source of no size at all; it grows
with the root of the source's bytes, for all programs ask for the same few lines of a small one."""
_L2_STREAM_BYTES_PER_SECOND: Final = 5.1e10
"""The same for elements that are read once, where they lie in the cache."""
_L2_SOURCE_BYTES: Final = 1e6
_L2_LINE_BYTES_PER_SECOND: Final = 5.9e11
"""Of one line for everybody."""
_OUTSTANDING_LOADS: Final = 8
"""Loads of a thread that are on their way at once, where nothing was asked for ahead."""
LOAD_BYTES: Final = 16
"""The most that a thread loads at once."""
_SPILL_PENALTY: Final = 2.3
"""How much longer steps take for each share of the registers that is wanted beyond all."""
_OVERLAP: Final = 3.0
"""How well what a multiprocessor does at once hides each other: 1 not at all."""
_L2_OVERLAP: Final = 2.0
"""The same of multiprocessors and the cache."""
MAX_REGISTERS_PER_THREAD: Final = 255
"""Of a thread."""
_MIN_REGISTERS: Final = 32
_TF32_SHARE: Final = {"tf32": 0.5, "tf32x3": 0.17}
"""Of what tensor cores do in 16 bits."""
_SMALL_TILE_MMA_SHARE: Final = 0.22
"""The same of the older instructions, beside which nothing else is hidden."""
_LEGACY_MMA_SHARE: Final = 0.85
"""The same where there are no others."""
_CUDA_CORE_SHARE: Final = 0.62
_CUDA_CORE_ACCUMULATORS: Final = 4.0
"""Sums that a thread needs for half of the share above: it reads less for each of many."""
_SHARED_READ_BYTES_PER_SECOND: Final = 2.25e11
"""Of tensor cores from a multiprocessor's shared memory."""
_WIDE_MMA_ROWS: Final = 64
"""Rows that wide instructions do at once."""
_GUESSED_EXTENT: Final = 8
_MIN_EXTENT: Final = 16


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """What a GPU has, and does at best."""

    multiprocessors: int
    tensor_flops: float
    """Of tensor cores, a second: factors of 16 bits, sums of 32."""
    cuda_core_flops: float
    """The same in float32 without tensor cores."""
    memory_bytes_per_second: float
    """A second."""
    l2_bytes: float
    wide_mma_rows: int
    """Tiles of fewer rows go through older and slower instructions."""
    limits: SmResources
    """What a multiprocessor has room for."""


_DATA_SHEETS: Final = {
    75: (40, 65, 8.1, 320, 4),  # T4
    80: (108, 312, 19.5, 2039, 40),  # A100
    86: (72, 125, 31.2, 600, 6),  # A10
    87: (16, 43, 5.3, 205, 4),  # Orin
    89: (142, 362, 91.6, 864, 96),  # L40S
    90: (132, 989, 67, 4300, 50),  # H200, its memory as measured
    100: (148, 2250, 75, 8000, 126),  # B200
    103: (148, 2500, 75, 8000, 126),  # B300
    110: (20, 259, 8.1, 273, 32),  # Thor
    120: (188, 504, 125, 1792, 128),  # RTX PRO 6000
    121: (48, 125, 31, 273, 24),  # GB10
}
"""The largest common GPU of each architecture, by its data sheet: multiprocessors, TFLOP/s with and
without tensor cores, GB/s of memory, MB of cache."""
_WITH_WIDE_MMA: Final = {90, 100, 103, 110}


def multiprocessors_of(capability: int) -> int:
    """Of the largest common GPU of an architecture."""
    return _DATA_SHEETS[capability][0]


def gpu_spec_of(target: CudaTarget) -> GpuSpec:
    """The GPU of a target; of several architectures the oldest, whose tactics all can run."""
    known, tensor, plain, memory, cache = _DATA_SHEETS[target.capability]
    share = target.multiprocessors / known
    return GpuSpec(
        multiprocessors=target.multiprocessors,
        tensor_flops=tensor * 1e12 * share,
        cuda_core_flops=plain * 1e12 * share,
        memory_bytes_per_second=memory * 1e9,
        l2_bytes=cache * 1e6,
        wide_mma_rows=_WIDE_MMA_ROWS if target.capability in _WITH_WIDE_MMA else 0,
        limits=SM_RESOURCES[target.capability],
    )


@dataclass(frozen=True, slots=True)
class LaunchWorkload:
    """A launch as data: what each of its programs does, and the memory it goes through."""

    programs: int
    num_warps: int
    registers: float
    """That a thread would like to have."""
    shared_bytes: int
    steps: int
    """Of a program, one after another."""
    num_stages: int
    """Steps whose elements are held: one where nothing is asked for ahead."""
    step_seconds: float
    """That a step's arithmetic keeps a multiprocessor busy."""
    step_overhead_seconds: float
    """The same of all else that a step does."""
    dependency_seconds: float
    """Of a step's instructions that wait for each other, whatever runs beside them."""
    step_bytes: float
    """That a step asks for; more where they are hard to find."""
    epilogue_bytes: float
    """That a program writes, and reads for it."""
    accumulators: float
    """Elements that a thread holds at its end."""
    l2_read_bytes: float
    """Of all programs together."""
    source_bytes: float
    """Of what several programs read."""
    moved_bytes: float
    """Of all operands and results, once each."""
    reuse: float = 1.0
    """How much faster elements come through the cache, for their programs want more of a line."""
    contended_bytes: float = 0.0
    """Of lines that all programs read, one after the other."""


def seconds_of(work: LaunchWorkload, gpu: GpuSpec) -> float:
    """What a launch takes."""
    needs_int64_offsets = work.source_bytes > gpu.l2_bytes / 2
    own = _programs_seconds(
        work, gpu, _MEMORY_LATENCY_SECONDS if needs_int64_offsets else _L2_LATENCY_SECONDS
    )
    rate = (
        gpu.memory_bytes_per_second
        if needs_int64_offsets
        else gpu.multiprocessors * _L2_STREAM_BYTES_PER_SECOND
    )
    moved = max(work.l2_read_bytes / l2_bytes_per_second(work, gpu), work.moved_bytes / rate)
    crowded = work.contended_bytes / _L2_LINE_BYTES_PER_SECOND
    return LAUNCH_SECONDS + _overlapped(_overlapped(own, moved, _L2_OVERLAP), crowded)


def l2_bytes_per_second(work: LaunchWorkload, gpu: GpuSpec) -> float:
    """Bytes that all programs together get through the second-level cache in a second."""
    root = 1 + sqrt(work.source_bytes / _L2_SOURCE_BYTES)
    return gpu.multiprocessors * _L2_BYTES_PER_SECOND * root * work.reuse


def _programs_seconds(work: LaunchWorkload, gpu: GpuSpec, latency: float) -> float:
    """Of all waves, as long as memory keeps up."""
    beyond = max(0.0, work.registers / MAX_REGISTERS_PER_THREAD - 1)
    taken = work.step_bytes / _SM_LOAD_BYTES_PER_SECOND
    step = (_overlapped(work.step_seconds, taken) + work.step_overhead_seconds) * (
        1 + _SPILL_PENALTY * beyond
    )
    if work.num_warps > _WARPS:
        step += _WARP_GROUPS_SYNC_SECONDS * (1 + _SPILL_PENALTY * beyond)
    end = work.epilogue_bytes / _EPILOGUE_BYTES_PER_SECOND
    alone = _ACCUMULATOR_SECONDS * work.accumulators + end
    alone += work.steps * _overlapped(step, _latency(work, latency))
    if work.num_stages > 1:
        alone += latency

    def wave(programs: int, start: float) -> float:
        return _overlapped(programs * (work.steps * step + end), start + alone)

    programs_per_sm, each = _programs_per_sm(work, gpu), ceil(work.programs / gpu.multiprocessors)
    if each <= programs_per_sm:
        return wave(each, 0.0)
    waves = ceil(work.programs / (programs_per_sm * gpu.multiprocessors))
    left = work.programs - (waves - 1) * programs_per_sm * gpu.multiprocessors
    last = wave(ceil(left / gpu.multiprocessors), _NEXT_PROGRAM_SECONDS)
    following = wave(programs_per_sm, _NEXT_PROGRAM_SECONDS)
    return wave(programs_per_sm, 0.0) + (waves - 2) * following + last


def _latency(work: LaunchWorkload, latency: float) -> float:
    """What a step takes at least, whatever else the multiprocessor does."""
    if work.num_stages > 1:
        each = latency / max(1, min(work.num_stages - 1, work.steps))
        slack = work.step_seconds if work.num_stages == 2 else 0.0  # nothing goes on meanwhile
        return max(each, work.dependency_seconds + slack)
    loads = work.step_bytes / (LOAD_BYTES * WARP_LANES * work.num_warps)
    return (
        latency * max(1.0, loads / _OUTSTANDING_LOADS) + work.dependency_seconds + work.step_seconds
    )


def _programs_per_sm(work: LaunchWorkload, gpu: GpuSpec) -> int:
    """Programs that a multiprocessor runs at once."""
    registers = ceil(min(max(work.registers, _MIN_REGISTERS), MAX_REGISTERS_PER_THREAD))
    threads = work.num_warps * WARP_LANES
    return max(1, gpu.limits.resident_blocks(threads, registers, work.shared_bytes)[0])


def _overlapped(a: float, b: float, overlap: float = _OVERLAP) -> float:
    """What two things take that hide each other, most of all where one is much longer."""
    return float((a**overlap + b**overlap) ** (1 / overlap))


def product_seconds(
    tile: tuple[int, int, int], num_warps: int, dtype: DType, precision: str, gpu: GpuSpec
) -> float:
    """What the multiplications of rows, columns and depth take of a multiprocessor."""
    bm, bn, bk = tile
    work = 2.0 * bm * bn * bk * gpu.multiprocessors
    if dtype is DType.FLOAT32 and precision == "ieee":
        accumulators = bm * bn / (num_warps * WARP_LANES)
        return work / (
            gpu.cuda_core_flops
            * _CUDA_CORE_SHARE
            * accumulators
            / (accumulators + _CUDA_CORE_ACCUMULATORS)
        )
    rate = gpu.tensor_flops * _TF32_SHARE.get(precision, 1.0)
    if not gpu.wide_mma_rows:
        return work / (rate * _LEGACY_MMA_SHARE)
    if bm < gpu.wide_mma_rows:
        return work / (rate * _SMALL_TILE_MMA_SHARE)
    read = -(-bm // _WIDE_MMA_ROWS) * (_WIDE_MMA_ROWS + bn) * bk * dtype.size_bytes
    return max(work / rate, read / _SHARED_READ_BYTES_PER_SECOND)


def guessed_extent(extent: Dim) -> int:
    """The extent, or a guess where it depends on symbols."""
    return evaluate_dim(extent, dict.fromkeys(symbols_of(extent), _GUESSED_EXTENT))


def next_power_of_two(value: int) -> int:
    """The least power of two that is no less: tiles have such extents."""
    return 1 << max(0, value - 1).bit_length()


def tile_extent(value: int) -> int:
    """The least extent of a tile on tensor cores that holds so many."""
    return max(_MIN_EXTENT, next_power_of_two(value))


def count_of(value: Value) -> int:
    """Elements of a tensor, symbols guessed."""
    return prod(map(guessed_extent, value.tensor.shape))


def memory_seconds(node: Node, target: CudaTarget) -> float:
    """A launch that reads every operand and writes every result once."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return pass_seconds(sum(count_of(v) * v.tensor.dtype.size_bytes for v in values), target)


def pass_seconds(moved_bytes: float, target: CudaTarget) -> float:
    """A launch that moves so many bytes, and does next to nothing with them."""
    return (
        LAUNCH_SECONDS
        + _L2_LATENCY_SECONDS
        + moved_bytes / gpu_spec_of(target).memory_bytes_per_second
    )
