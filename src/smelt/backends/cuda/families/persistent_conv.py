"""Persistent convolutions: programs keep their weights and process many tiles.

With one program per tile, each program loads the weights again, waits idle for its first pixels,
and multiplies nothing while it stores. Here a program loads the weights of its columns once, before
the preceding launch has ended, and walks down the rows; the loads of the next tiles overlap the
current one. That is fast where reductions are short, because then most of a tile's time is not
spent on products.
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
from smelt.backends.cuda.families._gemm_operands import wide_operand_reason
from smelt.backends.cuda.families._gemm_tiles import OWN_SHARED_BYTES, ranked_after_tiles
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    formats_of,
    product_shape,
    reason_against,
)
from smelt.backends.cuda.families.conv_sum import ConvSumFamily, sum_shape
from smelt.engine import parameters
from smelt.ops import Conv, ConvSum
from smelt.types import DType, fixed_extent, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.engine import KernelSpec, Parameters, Step
    from smelt.ir import Constant, Node

_MAX_CANDIDATES: Final = 3
"""Maximum number of tactics of a node. Chosen without a measurement."""
_TILES: Final = ((64, 64), (64, 128), (128, 64), (128, 128))
"""Rows and columns of tiles. Chosen without a measurement."""
_PROGRAMS_PER_SM: Final = (4, 3, 2, 1)
"""Numbers of programs per multiprocessor. Chosen without a measurement."""
_OWN_REGISTERS: Final = 96
"""Registers of a thread besides sums and epilogue operands. No measurement is recorded."""
_EIGHT_WARPS_ELEMENTS: Final = 128 * 128
"""Elements of a tile from which it has eight warps instead of four. Chosen without a
measurement."""
_MAX_STEP: Final = 256
"""Maximum step of a reduction, in elements. Chosen without a measurement."""
_MIN_STEP: Final = 64
"""Minimum step of a reduction, in elements. Chosen without a measurement."""
_MIN_FILLED: Final = 0.75
"""Minimum share of a step that is not padding. Chosen without a measurement."""
_MAX_STEPS: Final = 3
"""Maximum number of steps of a reduction; each step has a wait. Chosen without a measurement."""
_MIN_TILES: Final = 2
"""Minimum number of tiles per program; with fewer there is nothing to prefetch."""
_STAGE_COUNTS: Final = (4, 3)
"""Numbers of pipeline stages; with fewer, Triton loads a tile only after the one before is done."""
_FIRST_WITH_CP_ASYNC: Final = 80
"""Compute capability (times ten) from which tiles are prefetched without using registers."""
_FLOPS: Final = 6.8e14
"""Flop/s of the products, of all multiprocessors together. Chosen before these kernels ran on a
GPU, and not fitted since."""
_SM_L2_BYTES_PER_SECOND: Final = 8.0e10
"""Maximum rate at which one multiprocessor reads from the L2 cache. 3x3 layers of ResNet-50 draw 60
to 85 GB/s on an H200 (docs/lab/products-on-gpus.md)."""
_SHARED_BYTES_PER_SECOND: Final = 2.1e11
"""Bandwidth of one multiprocessor's shared memory. Chosen before these kernels ran on a GPU, and
not fitted since."""
_FRAGMENT: Final = (64, 16)
"""Rows and reduction step of one instruction, which reads both operands from shared memory."""
_TILE_SECONDS: Final = 5.0e-7
"""Time of a tile besides its products and loads, in seconds. Chosen before these kernels ran on a
GPU, and not fitted since."""
_UNHIDDEN_SHARE: Final = 0.2
"""Share of the shorter of two overlapping activities that is not hidden. Chosen before these
kernels ran on a GPU, and not fitted since."""


@dataclass(frozen=True, slots=True)
class _PersistentConfig:
    """Parameters of a tactic."""

    tile: tuple[int, int, int]
    num_stages: int
    programs_per_sm: int
    """Programs per multiprocessor."""
    programs: int
    """Programs that share a block of columns."""

    @property
    def num_warps(self) -> int:
        """Warps per program."""
        return 8 if self.tile[0] * self.tile[1] >= _EIGHT_WARPS_ELEMENTS else 4

    def fits(self, shape: GemmShape, target: CudaTarget) -> bool:
        """Return whether the programs fit on a multiprocessor at once and have enough tiles."""
        bm, bn, step = self.tile
        depth, extra = -(-shape.depth // step) * step, shape.adds * bm * bn
        prefetched = self.num_stages * bm * depth + (self.num_stages - 1) * extra
        needed_bytes = (
            depth * bn + bm * bn // 2 + prefetched
        ) * shape.dtype.size_bytes + OWN_SHARED_BYTES
        threads = self.num_warps * WARP_LANES
        registers = min(
            MAX_REGISTERS_PER_THREAD, _OWN_REGISTERS + (bm * bn + extra // 2) // threads
        )
        return (
            self.programs_per_sm * needed_bytes <= target.shared_bytes
            and self.programs_per_sm * registers * threads <= gpu_spec_of(target).limits.registers
            and -(-shape.rows // bm) >= _MIN_TILES * self.programs
        )

    @property
    def parameters(self) -> Parameters:
        """Parameters of the tactic."""
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
    """Family of convolutions and sums of two, computed by persistent programs."""

    name: ClassVar[str] = "persistent"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(root_of(node)[0], Conv | ConvSum) or reason_against(node):
            return  # the other families yield the refusal
        shape, step = _product_of(node, target)
        if reason := _unsupported_reason(shape, step, target):
            yield Refusal(self.name, reason)
            return
        configs = [(_seconds(shape, c, target), c) for c in _tile_configs(shape, step, target)]
        if not configs:
            yield Refusal(
                self.name,
                "weights and prefetched tiles exceed shared memory, or there are too few tiles",
            )
            return
        inputs, output = formats_of(node)
        ranked = sorted(configs, key=lambda pair: pair[0])[:_MAX_CANDIDATES]
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
    """Return the family of the same product with one program per tile."""
    return ConvSumFamily() if isinstance(root_of(node)[0], ConvSum) else ConvFamily()


def _product_of(node: Node, target: CudaTarget) -> tuple[GemmShape, int]:
    """Return the shape of a node's product, and the step of its reduction."""
    root = cast("Conv | ConvSum", root_of(node)[0])
    inner_k = fixed_extent(required_input(node, 1).tensor.shape[1])
    if isinstance(root, ConvSum):
        second = fixed_extent(required_input(node, 3).tensor.shape[1])
        return sum_shape(node, root, target), gcd(inner_k, second, _MAX_STEP)
    shape = product_shape(node, root, target)
    single_step = next_power_of_two(shape.depth)
    has_single_step = single_step <= _MAX_STEP and shape.depth >= _MIN_FILLED * single_step
    return shape, single_step if has_single_step and inner_k % MIN_VECTOR == 0 else gcd(
        inner_k, _MAX_STEP
    )


def _unsupported_reason(shape: GemmShape, step: int, target: CudaTarget) -> str | None:
    """Return why the family cannot run a product, or None."""
    if reason := wide_operand_reason(shape.dtype):
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
    """Yield, for each tile and number of programs, the fitting configuration with most stages."""
    for (bm, bn), programs_per_sm in product(_TILES, _PROGRAMS_PER_SM):
        if shape.columns % bn:
            continue
        programs = max(1, target.multiprocessors * programs_per_sm // (shape.columns // bn))
        configs = (
            _PersistentConfig((bm, bn, step), num_stages, programs_per_sm, programs)
            for num_stages in _STAGE_COUNTS
        )
        yield from islice((choice for choice in configs if choice.fits(shape, target)), 1)


def _seconds(shape: GemmShape, choice: _PersistentConfig, target: CudaTarget) -> float:
    """Return the estimated seconds of a launch."""
    bm, bn, _ = choice.tile
    size, programs_per_sm = shape.dtype.size_bytes, choice.programs_per_sm
    rows, steps = _FRAGMENT
    product_seconds = 2.0 * bm * bn * shape.depth * target.multiprocessors / _FLOPS
    extra = bm * bn * shape.adds
    load_seconds = (bm * shape.depth + extra) * size / _SM_L2_BYTES_PER_SECOND
    operand_elements = bm // rows * (shape.depth // steps) * (rows + bn) * steps
    shared_elements = operand_elements + bm * shape.depth + 2 * extra + 2 * bm * bn
    tile_seconds = max(
        product_seconds, load_seconds, shared_elements * size / _SHARED_BYTES_PER_SECOND
    )
    row_tiles = -(-shape.rows // bm)
    tiles_per_program = -(-row_tiles // choice.programs)
    program_seconds = tiles_per_program * max(
        programs_per_sm * tile_seconds, product_seconds + _TILE_SECONDS
    )
    a_elements = shape.image or shape.rows * shape.depth
    moved_elements = a_elements + shape.columns * (shape.depth + shape.rows * (1 + shape.adds))
    memory_seconds = moved_elements * size / gpu_spec_of(target).memory_bytes_per_second
    weight_seconds = programs_per_sm * bn * shape.depth * size / _SM_L2_BYTES_PER_SECOND
    return (
        LAUNCH_SECONDS
        + weight_seconds
        + max(program_seconds, memory_seconds)
        + _UNHIDDEN_SHARE * min(program_seconds, memory_seconds)
    )
