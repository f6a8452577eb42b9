"""Persistent convolutions: programs keep their weights and process many tiles.

With one program per tile, each program loads the weights again, waits idle for its first pixels,
and multiplies nothing while it stores. Here a program loads the weights of its columns once, before
the preceding launch has ended, and walks down the rows; the loads of the next tiles overlap the
current one. That is fast where reductions are short, because then most of a tile's time is not
spent on products.
"""

from __future__ import annotations

from itertools import product
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Tactic, refuse_if
from smelt.backends.cuda._cost_model import MAX_REGISTERS_PER_THREAD, gpu_spec_of, next_power_of_two
from smelt.backends.cuda._kernel_source import MIN_VECTOR
from smelt.backends.cuda._product_costs import persistent_seconds
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.backends.cuda.families._conv_problem import ConvProblem, conv_problem_of
from smelt.backends.cuda.families._product_family import ProductFamily
from smelt.backends.cuda.families._product_operands import wide_operand_reason
from smelt.backends.cuda.families._tile_candidates import OWN_SHARED_BYTES
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape
    from smelt.ir import Node

PERSISTENT: Final = "persistent"
"""Name of the family and of its schedule."""
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


def _fits(shape: GemmShape, config: TileConfig, programs_per_sm: int, target: CudaTarget) -> bool:
    """Return whether the programs fit on a multiprocessor at once and have enough tiles."""
    bm, bn, step = config.tile
    depth, extra = -(-shape.depth // step) * step, shape.adds * bm * bn
    prefetched = config.num_stages * bm * depth + (config.num_stages - 1) * extra
    needed_bytes = (depth * bn + bm * bn // 2 + prefetched) * shape.size + OWN_SHARED_BYTES
    sums = (bm * bn + extra // 2) // config.threads
    registers = config.threads * min(MAX_REGISTERS_PER_THREAD, _OWN_REGISTERS + sums)
    return (
        programs_per_sm * needed_bytes <= target.shared_bytes
        and programs_per_sm * registers <= gpu_spec_of(target).limits.registers
        and -(-shape.rows // bm) >= _MIN_TILES * config.row_programs
    )


class PersistentConvFamily(ProductFamily):
    """Family of convolutions and sums of two, computed by persistent programs."""

    name: ClassVar[str] = PERSISTENT

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        problem = conv_problem_of(node)
        if problem is None or problem.reason:
            return  # the other families yield the refusal
        shape = problem.shape(target)
        step = _step_of(problem, shape)
        refuse_if(_unsupported_reason(shape, step, target))
        configs = list(_tile_configs(shape, step, target))
        reason = (
            "the weights and the prefetched tiles exceed shared memory or registers, or a thread "
            f"block would have fewer than {_MIN_TILES} tiles"
        )
        yield from self.unfitted_tactics(problem, shape, configs, _MAX_CANDIDATES, target, reason)


def _step_of(problem: ConvProblem, shape: GemmShape) -> int:
    """Return the step of the reduction; all of it if that is one step of whole vectors."""
    if problem.is_sum:
        return gcd(shape.run, problem.second_image_channels, _MAX_STEP)
    single_step = next_power_of_two(shape.depth)
    has_single_step = single_step <= _MAX_STEP and shape.depth >= _MIN_FILLED * single_step
    if has_single_step and shape.run % MIN_VECTOR == 0:
        return single_step
    return gcd(shape.run, _MAX_STEP)


def _unsupported_reason(shape: GemmShape, step: int, target: CudaTarget) -> str | None:
    """Return why the family cannot run a product, or None."""
    if reason := wide_operand_reason(shape.dtype):
        return reason
    if target.capability < _FIRST_WITH_CP_ASYNC:
        return f"{target.architecture} has no asynchronous copies (cp.async)"
    if shape.matrices > 1 or all(shape.columns % columns for _, columns in _TILES):
        return (
            f"the convolution is grouped, or its filter count {shape.columns} is not a multiple of "
            f"{min(columns for _, columns in _TILES)}"
        )
    if step < _MIN_STEP or shape.depth > _MAX_STEPS * step:
        return (
            f"the reduction depth {shape.depth} needs more than {_MAX_STEPS} steps, or steps of "
            f"fewer than {_MIN_STEP} elements"
        )
    return None


def _tile_configs(
    shape: GemmShape, step: int, target: CudaTarget
) -> Iterator[tuple[float, TileConfig]]:
    """Yield, for each tile and number of programs, the fitting configuration with most stages.

    Each comes with its estimated seconds.
    """
    for (bm, bn), programs_per_sm in product(_TILES, _PROGRAMS_PER_SM):
        if shape.columns % bn:
            continue
        programs = max(1, target.multiprocessors * programs_per_sm // (shape.columns // bn))
        num_warps = 8 if bm * bn >= _EIGHT_WARPS_ELEMENTS else 4
        for num_stages in _STAGE_COUNTS:
            config = TileConfig(
                (bm, bn, step), num_warps, num_stages, row_programs=programs, schedule=PERSISTENT
            )
            if _fits(shape, config, programs_per_sm, target):
                gpu = gpu_spec_of(target)
                yield persistent_seconds(shape, config, programs_per_sm, gpu), config
                break
