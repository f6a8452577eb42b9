"""Prefetch-schedule products for small M: programs load their weights before the PDL wait.

With one image, a launch takes about two microseconds, and its programs spend much of that waiting
for loads. Weights do not depend on earlier launches, so they are loaded while the preceding launch
still runs. After the wait there remain one load of rows, one product and one store. All steps of a
reduction are in registers and shared memory at once, so long reductions are split, and there are at
most as many programs as can run at the same time.
"""

from __future__ import annotations

import dataclasses
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Tactic, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._cost_model import gpu_spec_of
from smelt.backends.cuda._product_costs import prefetched_registers, prefetched_seconds
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.backends.cuda.families._conv_problem import ConvProblem
from smelt.backends.cuda.families._product_family import ProductFamily, problem_of
from smelt.backends.cuda.families._product_operands import wide_operand_reason
from smelt.backends.cuda.families._tile_candidates import OWN_SHARED_BYTES, tiles_for
from smelt.ops import Conv, ConvSum, Gemm, MatMul
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape
    from smelt.ir import Node

PREFETCH: Final = "prefetch"
"""Name of the family and of its schedule."""
_TILES: Final = ((16, 32), (16, 64), (32, 32), (32, 64), (64, 32), (64, 64))
"""Rows and columns of tiles. Chosen without a measurement."""
_WARPS: Final = 4
"""Warps per program. Chosen without a measurement."""
_SPLIT_K: Final = (1, 2, 3, 4, 6, 8, 9, 12, 16, 18)
"""Numbers of splits. Chosen without a measurement."""
_MAX_CANDIDATES: Final = 3
"""Maximum number of tactics without split-K. Chosen without a measurement."""
_MAX_SPLIT_K_CANDIDATES: Final = 2
"""Maximum number of tactics with split-K. Chosen without a measurement."""
_MAX_PROGRAMS_PER_SM: Final = 2
"""Maximum number of programs per multiprocessor. Chosen without a measurement."""
_MAX_REGISTERS: Final = 220
"""Maximum estimated registers of a thread. No measurement is recorded."""
_MAX_DEPTH: Final = 640
"""Reduction depth above which split-K is used, in elements. Chosen without a comparison of other
limits; docs/lab/products-on-gpus.md has times with this one."""
_MAX_SPLIT_DEPTH: Final = 256
"""Maximum depth of one part of a split reduction, in elements. Chosen without a comparison of other
limits; docs/lab/products-on-gpus.md has times with this one."""
_MAX_STEP: Final = 128
"""Maximum step of a reduction, in elements. Chosen without a measurement."""
_MIN_STEP: Final = 32
"""Minimum step of a reduction, in elements. Chosen without a measurement."""


def _fits(shape: GemmShape, config: TileConfig, target: CudaTarget) -> bool:
    """Return whether all programs run at once with all their data on chip."""
    (bm, bn, step), split_k = config.tile, config.split_k
    depth, is_split = shape.depth // split_k, split_k > 1
    needed_bytes = (bm + bn) * depth * shape.size
    programs = -(-shape.rows // bm) * -(-shape.columns // bn) * split_k
    return (
        is_split == (shape.depth > _MAX_DEPTH)
        and shape.depth % (step * split_k) == 0
        and depth <= (_MAX_SPLIT_DEPTH if is_split else _MAX_DEPTH)
        and (bm == _TILES[0][0] or bm < 2 * shape.rows)
        and (bn == _TILES[0][1] or bn < 2 * shape.columns)
        and prefetched_registers(shape, config) <= _MAX_REGISTERS
        and _MAX_PROGRAMS_PER_SM * needed_bytes <= target.shared_bytes - OWN_SHARED_BYTES
        and programs <= _MAX_PROGRAMS_PER_SM * target.multiprocessors
    )


def _configs(shape: GemmShape, step: int) -> Iterator[TileConfig]:
    """Yield every tile and number of splits."""
    for tile, split_k in product(_TILES, _SPLIT_K):
        yield TileConfig(
            (*tile, step),
            _WARPS,
            num_stages=1,
            prefetches_epilogue=shape.adds and split_k == 1,
            split_k=split_k,
            schedule=PREFETCH,
        )


class PrefetchGemmFamily(ProductFamily):
    """Family of products in which one constant matrix of weights multiplies all rows."""

    name: ClassVar[str] = PREFETCH
    supports_reversed_tiles: ClassVar[bool] = False

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(root_of(node)[0], Conv | ConvSum | Gemm | MatMul):
            return
        problem = problem_of(node)
        if isinstance(problem, ConvProblem) and problem.reason:
            return  # the other families yield the refusal
        shape = problem.shape(target)
        step = gcd(shape.run, shape.depth, _MAX_STEP)
        refuse_if(problem.matrix_reason or _unsupported_reason(shape, step, target))
        if problem.reason or not tiles_for(shape, target):
            return  # that family yields the refusal, or the reduction is empty
        # All rows have the same weights, so batch axes are rows.
        shape = dataclasses.replace(shape, matrices=1, rows=shape.matrices * shape.rows)
        gpu = gpu_spec_of(target)
        fitting = [
            (prefetched_seconds(shape, config, gpu), config)
            for config in _configs(shape, step)
            if _fits(shape, config, target)
        ]
        limit = _MAX_CANDIDATES if shape.depth <= _MAX_DEPTH else _MAX_SPLIT_K_CANDIDATES
        reason = "no tile and number of splits fits on the GPU in one wave of thread blocks"
        yield from self.unfitted_tactics(problem, shape, fitting, limit, target, reason)


def _unsupported_reason(shape: GemmShape, step: int, target: CudaTarget) -> str | None:
    """Return why the schedule does not suit a product, or None."""
    if reason := wide_operand_reason(shape.dtype):
        return reason
    if not target.uses_pdl:
        return f"{target.architecture} has no programmatic dependent launch (PDL)"
    if step < _MIN_STEP:
        return (
            f"the reduction depth {shape.depth} allows only steps of {step} elements; at least "
            f"{_MIN_STEP} are needed"
        )
    return None
