"""Convolutions of many places by programs that stay: each holds its weights, and does many tiles.

A program for each tile reads the weights anew, waits for its first pixels with nothing else to do,
and multiplies nothing while it writes. Here a program reads the weights of its columns once, before
the launch before it has ended, and walks down the rows; what the next tiles read is on its way
while it does one. That pays where sums are short: what a tile costs beside its products is then
most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import (
    LAUNCH_SECONDS,
    MAX_REGISTERS_PER_THREAD,
    WARP_LANES,
    gpu_spec_of,
    next_power_of_two,
)
from smelt.backends.cuda._implicit_gemm import write_implicit_gemm
from smelt.backends.cuda._kernel_source import MIN_VECTOR
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._gemm_operands import why_wide
from smelt.backends.cuda.families._gemm_tiles import OWN_SHARED_BYTES, ranked_after_tiles
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    formats_of,
    product_shape,
    reason_against,
)
from smelt.backends.cuda.families.conv_sum import ConvSumFamily, sum_shape
from smelt.engine import parameters
from smelt.ops.conv import Conv
from smelt.ops.conv_sum import ConvSum
from smelt.types import DType, fixed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.engine import KernelSpec, Parameters, Step
    from smelt.ir import Constant, Node

_MAX_CANDIDATES: Final = 3
_TILES: Final = ((64, 64), (64, 128), (128, 64), (128, 128))
"""Rows and columns."""
_PROGRAMS_PER_SM: Final = (4, 3, 2, 1)
"""Programs of a multiprocessor."""
_OWN_REGISTERS: Final = 96
"""Of a thread, beside the sums and extra operands."""
_EIGHT_WARPS_ELEMENTS: Final = 128 * 128
"""Elements of a tile."""
_MAX_STEP: Final = 256
_MIN_STEP: Final = 64
_MIN_FILLED: Final = 0.75
"""Share of a step that must not be zeros."""
_MAX_STEPS: Final = 3
"""Each is waited for."""
_MIN_TILES: Final = 2
"""Of a program; with fewer there is nothing to load ahead."""
_STAGE_COUNTS: Final = (4, 3)
"""With less the compiler asks for a tile when the one before is done."""
_FIRST_WITH_CP_ASYNC: Final = 80
"""Capability from which on tiles are loaded ahead without going through registers."""
_FLOPS: Final = 6.8e14
_SM_L2_BYTES_PER_SECOND: Final = 8.0e10
"""Bytes a second that one multiprocessor gets from the second-level cache, at most."""
_SHARED_BYTES_PER_SECOND: Final = 2.1e11
"""Of one multiprocessor's shared memory."""
_FRAGMENT: Final = (64, 16)
"""Rows and steps of one instruction, for which it reads both factors again."""
_TILE_SECONDS: Final = 5.0e-7
"""What a tile takes beside its products and loads."""
_UNHIDDEN_SHARE: Final = 0.2
"""How much of the shorter of two things that could go on at once is not hidden."""


@dataclass(frozen=True, slots=True)
class _PersistentConfig:
    """What a tactic decides."""

    tile: tuple[int, int, int]
    num_stages: int
    programs_per_sm: int
    """Programs of a multiprocessor."""
    programs: int
    """Those that share a stretch of columns."""

    @property
    def num_warps(self) -> int:
        return 8 if self.tile[0] * self.tile[1] >= _EIGHT_WARPS_ELEMENTS else 4

    def fits(self, shape: GemmShape, target: CudaTarget) -> bool:
        """Whether so many programs have room beside each other, and enough to do."""
        bm, bn, step = self.tile
        depth, extra = -(-shape.depth // step) * step, shape.adds * bm * bn
        ahead = self.num_stages * bm * depth + (self.num_stages - 1) * extra
        needed_bytes = (
            depth * bn + bm * bn // 2 + ahead
        ) * shape.dtype.size_bytes + OWN_SHARED_BYTES
        threads = self.num_warps * WARP_LANES
        each = min(MAX_REGISTERS_PER_THREAD, _OWN_REGISTERS + (bm * bn + extra // 2) // threads)
        return (
            self.programs_per_sm * needed_bytes <= target.shared_bytes
            and self.programs_per_sm * each * threads <= gpu_spec_of(target).limits.registers
            and -(-shape.rows // bm) >= _MIN_TILES * self.programs
        )

    @property
    def parameters(self) -> Parameters:
        """The decision as data."""
        return parameters(
            tile=self.tile,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            programs=self.programs,
            schedule="persistent",
            precision="ieee",
            prefetches_epilogue=False,
            split_k=1,
        )


class PersistentConvFamily(Family[CudaTarget]):
    """What other families compute by a program for each tile."""

    name: ClassVar[str] = "persistent"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(root_of(node)[0], Conv | ConvSum) or reason_against(node):
            return  # the other families say why
        shape, step = _product_of(node, target)
        if reason := _unsupported_reason(shape, step, target):
            yield Refusal(self.name, reason)
            return
        found = [(_seconds(shape, c, target), c) for c in _tile_configs(shape, step, target)]
        if not found:
            yield Refusal(
                self.name,
                "weights and prefetched tiles exceed shared memory, or there are too few tiles",
            )
            return
        inputs, output = formats_of(node)
        ranked = sorted(found, key=lambda pair: pair[0])[:_MAX_CANDIDATES]
        for seconds, choice in ranked_after_tiles(ranked, shape, target):
            yield Tactic(self.name, choice.parameters, inputs, (output,), cost_hint=seconds)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        return _base_of(node).reduced_precision_tactics(node, tactic, dtype, target)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return _base_of(node).pack(node, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _base_of(node).lower(node, tactic, operands)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)


def _base_of(node: Node) -> Family[CudaTarget]:
    """The family of the same product by a program for each tile."""
    return ConvSumFamily() if isinstance(root_of(node)[0], ConvSum) else ConvFamily()


def _product_of(node: Node, target: CudaTarget) -> tuple[GemmShape, int]:
    """The extents of a node's product, and how long steps of its sum are."""
    root = cast("Conv | ConvSum", root_of(node)[0])
    run = fixed_extent(required_input(node, 1).tensor.shape[1])
    if isinstance(root, ConvSum):
        second = fixed_extent(required_input(node, 3).tensor.shape[1])
        return sum_shape(node, root, target), gcd(run, second, _MAX_STEP)
    shape = product_shape(node, root, target)
    whole = next_power_of_two(shape.depth)
    is_whole = whole <= _MAX_STEP and shape.depth >= _MIN_FILLED * whole
    return shape, whole if is_whole and run % MIN_VECTOR == 0 else gcd(run, _MAX_STEP)


def _unsupported_reason(shape: GemmShape, step: int, target: CudaTarget) -> str | None:
    if reason := why_wide(shape.dtype):
        return reason
    if target.capability < _FIRST_WITH_CP_ASYNC:
        return f"{target.architecture} has no asynchronous copies (cp.async)"
    if shape.matrices > 1 or all(shape.columns % columns for _, columns in _TILES):
        return "grouped convolution, or the filter count is not a multiple of the tile"
    if step < _MIN_STEP or shape.depth > _MAX_STEPS * step:
        return (
            f"the reduction depth {shape.depth} needs more than {_MAX_STEPS} steps, or steps that "
            "are too short"
        )
    return None


def _tile_configs(shape: GemmShape, step: int, target: CudaTarget) -> Iterator[_PersistentConfig]:
    """For each size of tile and number of programs, what loads furthest ahead."""
    for (bm, bn), programs_per_sm in product(_TILES, _PROGRAMS_PER_SM):
        if shape.columns % bn:
            continue
        programs = max(1, target.multiprocessors * programs_per_sm // (shape.columns // bn))
        made = (
            _PersistentConfig((bm, bn, step), num_stages, programs_per_sm, programs)
            for num_stages in _STAGE_COUNTS
        )
        yield from islice((choice for choice in made if choice.fits(shape, target)), 1)


def _seconds(shape: GemmShape, choice: _PersistentConfig, target: CudaTarget) -> float:
    bm, bn, _ = choice.tile
    size, programs_per_sm = shape.dtype.size_bytes, choice.programs_per_sm
    rows, steps = _FRAGMENT
    work = 2.0 * bm * bn * shape.depth * target.multiprocessors / _FLOPS
    extra = bm * bn * shape.adds
    fed = (bm * shape.depth + extra) * size / _SM_L2_BYTES_PER_SECOND
    read = bm // rows * (shape.depth // steps) * (rows + bn) * steps
    through = read + bm * shape.depth + 2 * extra + 2 * bm * bn
    busy = max(work, fed, through * size / _SHARED_BYTES_PER_SECOND)
    down = -(-shape.rows // bm)
    each = -(-down // choice.programs)
    tiles = each * max(programs_per_sm * busy, work + _TILE_SECONDS)
    first = shape.image or shape.rows * shape.depth
    moved = first + shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    floor = moved * size / gpu_spec_of(target).memory_bytes_per_second
    weights = programs_per_sm * bn * shape.depth * size / _SM_L2_BYTES_PER_SECOND
    return LAUNCH_SECONDS + weights + max(tiles, floor) + _UNHIDDEN_SHARE * min(tiles, floor)
