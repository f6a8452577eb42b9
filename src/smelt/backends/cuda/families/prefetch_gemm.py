"""Prefetch-schedule products for small M: programs load their weights before the PDL wait.

With one image, a launch takes about two microseconds, and its programs spend much of that waiting
for loads. Weights do not depend on earlier launches, so they are loaded while the preceding launch
still runs. After the wait there remain one load of rows, one product and one store. All steps of a
reduction are in registers and shared memory at once, so long reductions are split, and there are at
most as many programs as can run at the same time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import (
    WARP_LANES,
    LaunchWorkload,
    gpu_spec_of,
    product_seconds,
    seconds_of,
)
from smelt.backends.cuda._implicit_gemm import write_implicit_gemm
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._gemm_launches import ACCUMULATOR_BYTES
from smelt.backends.cuda.families._gemm_operands import wide_operand_reason
from smelt.backends.cuda.families._gemm_tiles import (
    OWN_SHARED_BYTES,
    ranked_after_tiles,
    split_k_reduce_seconds,
)
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    is_depthwise,
    product_shape,
    reason_against,
)
from smelt.backends.cuda.families.conv_sum import ConvSumFamily, sum_shape
from smelt.backends.cuda.families.gemm import GemmFamily, has_transposed_first_operand, shape_of
from smelt.engine import parameters
from smelt.ops import Conv, ConvSum, Gemm, MatMul
from smelt.types import element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda.families._gemm_tiles import GemmShape
    from smelt.engine import KernelSpec, Parameters, Step
    from smelt.ir import Constant, Node

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
_OWN_REGISTERS: Final = 40
"""Registers of a thread besides operands and sums. No measurement is recorded."""
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


@dataclass(frozen=True, slots=True)
class _PrefetchConfig:
    """Parameters of a tactic."""

    tile: tuple[int, int, int]
    split_k: int

    def depth(self, shape: GemmShape) -> int:
        """Return the reduction depth of a program."""
        return shape.depth // self.split_k

    def registers(self, shape: GemmShape) -> float:
        """Return the estimated registers of a thread."""
        (bm, bn, _), adds = self.tile, shape.adds and self.split_k == 1
        return _OWN_REGISTERS + ((bm + bn) * self.depth(shape) / 2 + bm * bn * (1 + adds / 2)) / (
            _WARPS * WARP_LANES
        )

    def programs(self, shape: GemmShape) -> int:
        """Return the number of programs: one per tile and split."""
        tiles = -(-shape.rows // self.tile[0]) * -(-shape.columns // self.tile[1])
        return tiles * self.split_k

    def fits(self, shape: GemmShape, target: CudaTarget) -> bool:
        """Return whether all programs run at once with all their data on chip."""
        bm, bn, step = self.tile
        depth, is_split = self.depth(shape), self.split_k > 1
        needed_bytes = (bm + bn) * depth * shape.dtype.size_bytes
        return (
            is_split == (shape.depth > _MAX_DEPTH)
            and shape.depth % (step * self.split_k) == 0
            and depth <= (_MAX_SPLIT_DEPTH if is_split else _MAX_DEPTH)
            and (bm == _TILES[0][0] or bm < 2 * shape.rows)
            and (bn == _TILES[0][1] or bn < 2 * shape.columns)
            and self.registers(shape) <= _MAX_REGISTERS
            and _MAX_PROGRAMS_PER_SM * needed_bytes <= target.shared_bytes - OWN_SHARED_BYTES
            and self.programs(shape) <= _MAX_PROGRAMS_PER_SM * target.multiprocessors
        )

    def parameters(self, shape: GemmShape) -> Parameters:
        """Return the parameters of the tactic."""
        return parameters(
            tile=self.tile,
            num_warps=_WARPS,
            num_stages=1,
            schedule=PREFETCH,
            precision="ieee",
            prefetches_epilogue=shape.adds and self.split_k == 1,
            split_k=self.split_k,
        )


class PrefetchGemmFamily(Family[CudaTarget]):
    """Family of products in which one constant matrix of weights multiplies all rows."""

    name: ClassVar[str] = PREFETCH
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        base = _base_of(node)
        if base is None:
            return
        if reason := _unsupported_reason(node, target):
            yield Refusal(self.name, reason)
            return
        plain = next(base.tactics(node, target), None)
        if not isinstance(plain, Tactic):
            return  # that family yields the refusal, or the reduction is empty
        shape, step = _shape(node, target)
        configs = [
            _PrefetchConfig((*tile, step), split_k) for tile, split_k in product(_TILES, _SPLIT_K)
        ]
        fitting = [(_seconds(shape, c, target), c) for c in configs if c.fits(shape, target)]
        if not fitting:
            yield Refusal(self.name, "the thread blocks do not fit on the GPU in one wave")
            return
        limit = _MAX_CANDIDATES if shape.depth <= _MAX_DEPTH else _MAX_SPLIT_K_CANDIDATES
        ranked = sorted(fitting, key=lambda pair: pair[0])[:limit]
        partial_bytes = element_count(node.output.tensor.shape) * ACCUMULATOR_BYTES
        for seconds, choice in ranked_after_tiles(ranked, shape, target):
            workspace = partial_bytes * choice.split_k if choice.split_k > 1 else 0
            options, formats = choice.parameters(shape), (plain.inputs, plain.outputs)
            yield Tactic(self.name, options, *formats, workspace_bytes=workspace, cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return _require_base(node).pack(node, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _require_base(node).lower(node, tactic, operands)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)


def _base_of(node: Node) -> Family[CudaTarget] | None:
    """Return the family of the same product with the tiled schedule, or None."""
    root = root_of(node)[0]
    if isinstance(root, Gemm | MatMul):
        return GemmFamily()
    if not isinstance(root, Conv | ConvSum) or reason_against(node):
        return None  # the other families yield the refusal
    return ConvFamily() if isinstance(root, Conv) else ConvSumFamily()


def _require_base(node: Node) -> Family[CudaTarget]:
    """Return that family for a node that has tactics."""
    return cast("Family[CudaTarget]", _base_of(node))


def _shape(node: Node, target: CudaTarget) -> tuple[GemmShape, int]:
    """Return the product, with batch axes as rows, and the step of its reduction."""
    root = root_of(node)[0]
    if isinstance(root, ConvSum):
        shape = sum_shape(node, root, target)
        return shape, gcd(shape.run, shape.depth, _MAX_STEP)
    if isinstance(root, Conv):
        shape = product_shape(node, root, target)
        return shape, gcd(shape.run, _MAX_STEP)
    shape = shape_of(node, target)
    shape = dataclasses.replace(shape, matrices=1, rows=shape.matrices * shape.rows)
    return shape, gcd(shape.depth, _MAX_STEP)


def _unsupported_reason(node: Node, target: CudaTarget) -> str | None:
    """Return why the family cannot run a node, or None."""
    root, (shape, step) = root_of(node)[0], _shape(node, target)
    if isinstance(root, Conv | ConvSum):
        if shape.matrices > 1 or (isinstance(root, Conv) and is_depthwise(node, root)):
            return "grouped convolution is not supported"
    elif reason := _why_no_matrix(node):
        return reason
    if reason := wide_operand_reason(shape.dtype):
        return reason
    if not target.uses_pdl:
        return f"{target.architecture} has no programmatic dependent launch (PDL)"
    return (
        f"the reduction depth {shape.depth} allows only steps of {step}"
        if step < _MIN_STEP
        else None
    )


def _why_no_matrix(node: Node) -> str | None:
    """Return why the second operand of a Gemm or MatMul is unsuitable, or None."""
    x, weights = required_input(node, 0).tensor, required_input(node, 1)
    if weights.constant is None or weights.tensor.rank != 2 or x.rank < 2:
        return "the second operand is not a constant matrix"
    if not isinstance(x.shape[-2 if has_transposed_first_operand(node) else -1], int):
        return "the reduction depth is symbolic"
    return None


def _seconds(shape: GemmShape, choice: _PrefetchConfig, target: CudaTarget) -> float:
    """Return the estimated seconds of a launch whose weights are already loaded."""
    (bm, bn, _), size, gpu = choice.tile, shape.dtype.size_bytes, gpu_spec_of(target)
    programs, depth, a_elements = (
        choice.programs(shape),
        choice.depth(shape),
        shape.rows * shape.depth,
    )
    step_seconds = product_seconds((bm, bn, depth), _WARPS, shape.dtype, "ieee", gpu)
    epilogue_bytes = (
        bm * bn * (size * (1 + shape.adds) if choice.split_k == 1 else ACCUMULATOR_BYTES)
    )
    work = LaunchWorkload(
        programs=programs,
        num_warps=_WARPS,
        registers=choice.registers(shape),
        shared_bytes=(bm + bn) * depth * size,
        steps=1,
        num_stages=1,
        step_seconds=step_seconds,
        step_overhead_seconds=0.0,
        dependency_seconds=0.0,
        step_bytes=float(bm * depth * size),
        epilogue_bytes=float(epilogue_bytes),
        accumulators=bm * bn / (_WARPS * WARP_LANES),
        l2_read_bytes=float(programs) * ((bm + bn) * depth * size + epilogue_bytes),
        source_bytes=float(size * (shape.image or a_elements)),
        moved_bytes=float(size * (a_elements + shape.columns * (shape.depth + shape.rows))),
    )
    reduce_seconds = (
        split_k_reduce_seconds(shape, choice.split_k, work, gpu) if choice.split_k > 1 else 0.0
    )
    return seconds_of(work, gpu) + reduce_seconds
