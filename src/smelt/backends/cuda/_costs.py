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

from smelt.devices.cuda import LIMITS
from smelt.types import DType, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from smelt.backends.cuda._target import CudaTarget
    from smelt.devices.cuda import GpuLimits
    from smelt.ir import Node, Value
    from smelt.types import Dim

WARP_LANES: Final = 32
LAUNCH_SECONDS: Final = 8.9e-7
_NEXT_SECONDS: Final = 3.9e-7
"""Until a program that follows another asks for its first elements."""
_NEAR_SECONDS: Final = 1.6e-7
"""From asking for elements to having them, from the second-level cache."""
_FAR_SECONDS: Final = 9.4e-7
"""The same from memory, under load."""
_TAKEN_BYTES_PER_SECOND: Final = 1.9e11
"""What a multiprocessor takes in."""
_ENDED_BYTES_PER_SECOND: Final = 2.8e10
"""At which a multiprocessor writes results, and reads what is added to them."""
_HELD_SECONDS: Final = 6.0e-9
"""Of a program's end, for each element that a thread holds."""
_MORE_WARPS_SECONDS: Final = 2.2e-8
"""Of a step that more than one group of warps waits for."""
_WARPS: Final = 4
_CACHE_BYTES_PER_SECOND: Final = 2.95e10
"""Through the second-level cache for each multiprocessor, of a source of no size at all; it grows
with the root of the source's bytes, for all programs ask for the same few lines of a small one."""
_LINES_BYTES_PER_SECOND: Final = 5.1e10
"""The same for elements that are read once, where they lie in the cache."""
_ROOT_BYTES: Final = 1e6
_LINE_BYTES_PER_SECOND: Final = 5.9e11
"""Of one line for everybody."""
_OUTSTANDING: Final = 8
"""Loads of a thread that are on their way at once, where nothing was asked for ahead."""
LOAD_BYTES: Final = 16
"""The most that a thread loads at once."""
_SPILLED: Final = 2.3
"""How much longer steps take for each share of the registers that is wanted beyond all."""
_OVERLAP: Final = 3.0
"""How well what a multiprocessor does at once hides each other: 1 not at all."""
_CACHE_OVERLAP: Final = 2.0
"""The same of multiprocessors and the cache."""
MOST_REGISTERS: Final = 255
"""Of a thread."""
_LEAST_REGISTERS: Final = 32
_TF32_SHARE: Final = {"tf32": 0.5, "tf32x3": 0.17}
"""Of what tensor cores do in 16 bits."""
_NARROW_SHARE: Final = 0.22
"""The same of the older instructions, beside which nothing else is hidden."""
_OLDER_SHARE: Final = 0.85
"""The same where there are no others."""
_PLAIN_SHARE: Final = 0.62
_PLAIN_SUMS: Final = 4.0
"""Sums that a thread needs for half of the share above: it reads less for each of many."""
_READ_BYTES_PER_SECOND: Final = 2.25e11
"""Of tensor cores from a multiprocessor's shared memory."""
_WIDE_ROWS: Final = 64
"""Rows that wide instructions do at once."""
_GUESSED_EXTENT: Final = 8
_LEAST_EXTENT: Final = 16


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU has, and does at best."""

    multiprocessors: int
    tensor_flops: float
    """Of tensor cores, a second: factors of 16 bits, sums of 32."""
    plain_flops: float
    """The same in float32 without tensor cores."""
    memory_bytes: float
    """A second."""
    cache_bytes: float
    wide_rows: int
    """Tiles of fewer rows go through older and slower instructions."""
    limits: GpuLimits
    """What a multiprocessor has room for."""


_SHEETS: Final = {
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
_WITH_WIDE_ROWS: Final = {90, 100, 103, 110}


def multiprocessors_of(capability: int) -> int:
    """Of the largest common GPU of an architecture."""
    return _SHEETS[capability][0]


def gpu_of(target: CudaTarget) -> Gpu:
    """The GPU of a target; of several architectures the oldest, whose tactics all can run."""
    known, tensor, plain, memory, cache = _SHEETS[target.capability]
    share = target.multiprocessors / known
    return Gpu(
        multiprocessors=target.multiprocessors,
        tensor_flops=tensor * 1e12 * share,
        plain_flops=plain * 1e12 * share,
        memory_bytes=memory * 1e9,
        cache_bytes=cache * 1e6,
        wide_rows=_WIDE_ROWS if target.capability in _WITH_WIDE_ROWS else 0,
        limits=LIMITS[target.capability],
    )


@dataclass(frozen=True, slots=True)
class Work:
    """A launch as data: what each of its programs does, and the memory it goes through."""

    programs: int
    warps: int
    registers: float
    """That a thread would like to have."""
    shared_bytes: int
    steps: int
    """Of a program, one after another."""
    held: int
    """Steps whose elements are held: one where nothing is asked for ahead."""
    step_seconds: float
    """That a step's arithmetic keeps a multiprocessor busy."""
    turn_seconds: float
    """The same of all else that a step does."""
    chain_seconds: float
    """Of a step's instructions that wait for each other, whatever runs beside them."""
    step_bytes: float
    """That a step asks for; more where they are hard to find."""
    end_bytes: float
    """That a program writes, and reads for it."""
    sums: float
    """Elements that a thread holds at its end."""
    fetched_bytes: float
    """Of all programs together."""
    source_bytes: float
    """Of what several programs read."""
    moved_bytes: float
    """Of all operands and results, once each."""
    reuse: float = 1.0
    """How much faster elements come through the cache, for their programs want more of a line."""
    crowded_bytes: float = 0.0
    """Of lines that all programs read, one after the other."""


def seconds_of(work: Work, gpu: Gpu) -> float:
    """What a launch takes."""
    is_far = work.source_bytes > gpu.cache_bytes / 2
    own = _programs_seconds(work, gpu, _FAR_SECONDS if is_far else _NEAR_SECONDS)
    rate = gpu.memory_bytes if is_far else gpu.multiprocessors * _LINES_BYTES_PER_SECOND
    moved = max(work.fetched_bytes / cache_rate(work, gpu), work.moved_bytes / rate)
    crowded = work.crowded_bytes / _LINE_BYTES_PER_SECOND
    return LAUNCH_SECONDS + _both(_both(own, moved, _CACHE_OVERLAP), crowded)


def cache_rate(work: Work, gpu: Gpu) -> float:
    """Bytes that all programs together get through the second-level cache in a second."""
    root = 1 + sqrt(work.source_bytes / _ROOT_BYTES)
    return gpu.multiprocessors * _CACHE_BYTES_PER_SECOND * root * work.reuse


def _programs_seconds(work: Work, gpu: Gpu, latency: float) -> float:
    """Of all waves, as long as memory keeps up."""
    beyond = max(0.0, work.registers / MOST_REGISTERS - 1)
    taken = work.step_bytes / _TAKEN_BYTES_PER_SECOND
    step = (_both(work.step_seconds, taken) + work.turn_seconds) * (1 + _SPILLED * beyond)
    if work.warps > _WARPS:
        step += _MORE_WARPS_SECONDS * (1 + _SPILLED * beyond)
    end = work.end_bytes / _ENDED_BYTES_PER_SECOND
    alone = _HELD_SECONDS * work.sums + end
    alone += work.steps * _both(step, _latency(work, latency))
    if work.held > 1:
        alone += latency

    def wave(programs: int, start: float) -> float:
        return _both(programs * (work.steps * step + end), start + alone)

    beside, each = _beside(work, gpu), ceil(work.programs / gpu.multiprocessors)
    if each <= beside:
        return wave(each, 0.0)
    waves = ceil(work.programs / (beside * gpu.multiprocessors))
    left = work.programs - (waves - 1) * beside * gpu.multiprocessors
    last = wave(ceil(left / gpu.multiprocessors), _NEXT_SECONDS)
    following = wave(beside, _NEXT_SECONDS)
    return wave(beside, 0.0) + (waves - 2) * following + last


def _latency(work: Work, latency: float) -> float:
    """What a step takes at least, whatever else the multiprocessor does."""
    if work.held > 1:
        each = latency / max(1, min(work.held - 1, work.steps))
        slack = work.step_seconds if work.held == 2 else 0.0  # nothing goes on meanwhile
        return max(each, work.chain_seconds + slack)
    loads = work.step_bytes / (LOAD_BYTES * WARP_LANES * work.warps)
    return latency * max(1.0, loads / _OUTSTANDING) + work.chain_seconds + work.step_seconds


def _beside(work: Work, gpu: Gpu) -> int:
    """Programs that a multiprocessor runs at once."""
    registers = ceil(min(max(work.registers, _LEAST_REGISTERS), MOST_REGISTERS))
    threads = work.warps * WARP_LANES
    return max(1, gpu.limits.resident_blocks(threads, registers, work.shared_bytes)[0])


def _both(a: float, b: float, overlap: float = _OVERLAP) -> float:
    """What two things take that hide each other, most of all where one is much longer."""
    return float((a**overlap + b**overlap) ** (1 / overlap))


def product_seconds(
    tile: tuple[int, int, int], warps: int, dtype: DType, precision: str, gpu: Gpu
) -> float:
    """What the multiplications of rows, columns and depth take of a multiprocessor."""
    bm, bn, bk = tile
    work = 2.0 * bm * bn * bk * gpu.multiprocessors
    if dtype is DType.FLOAT32 and precision == "ieee":
        sums = bm * bn / (warps * WARP_LANES)
        return work / (gpu.plain_flops * _PLAIN_SHARE * sums / (sums + _PLAIN_SUMS))
    rate = gpu.tensor_flops * _TF32_SHARE.get(precision, 1.0)
    if not gpu.wide_rows:
        return work / (rate * _OLDER_SHARE)
    if bm < gpu.wide_rows:
        return work / (rate * _NARROW_SHARE)
    read = -(-bm // _WIDE_ROWS) * (_WIDE_ROWS + bn) * bk * dtype.size_bytes
    return max(work / rate, read / _READ_BYTES_PER_SECOND)


def guess(extent: Dim) -> int:
    """The extent, or a guess where it depends on symbols."""
    return evaluate_dim(extent, dict.fromkeys(symbols_of(extent), _GUESSED_EXTENT))


def next_power(value: int) -> int:
    """The least power of two that is no less: tiles have such extents."""
    return 1 << max(0, value - 1).bit_length()


def tile_extent(value: int) -> int:
    """The least extent of a tile on tensor cores that holds so many."""
    return max(_LEAST_EXTENT, next_power(value))


def count_of(value: Value) -> int:
    """Elements of a tensor, symbols guessed."""
    return prod(map(guess, value.tensor.shape))


def memory_seconds(node: Node, target: CudaTarget) -> float:
    """A launch that reads every operand and writes every result once."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return pass_seconds(sum(count_of(v) * v.tensor.dtype.size_bytes for v in values), target)


def pass_seconds(moved_bytes: float, target: CudaTarget) -> float:
    """A launch that moves so many bytes, and does next to nothing with them."""
    return LAUNCH_SECONDS + _NEAR_SECONDS + moved_bytes / gpu_of(target).memory_bytes
