"""Base of the families of products: each is a schedule, the problem answers everything else."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Tactic, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._implicit_gemm import WRITERS
from smelt.backends.cuda._product_costs import ACCUMULATOR_BYTES
from smelt.backends.cuda.families._conv_problem import ConvLowering, ConvProblem, required_conv
from smelt.backends.cuda.families._gemm_problem import GemmLowering, GemmProblem
from smelt.backends.cuda.families._tile_candidates import tiles_for
from smelt.ops import Gemm, MatMul
from smelt.types import element_count, override

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from smelt.backends._base import Operands
    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape, TileConfig
    from smelt.backends.cuda.families._product_problem import ProductProblem
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node

_UNFITTED_PENALTY: Final = 1.01
"""Factor on the estimates of kernels that the cost model was not fitted to, relative to the best
tile: they are not chosen without measurements."""


def problem_of(node: Node) -> GemmProblem | ConvProblem:
    """Return the description of a product. Raises InternalError for any other op."""
    is_gemm = isinstance(root_of(node)[0], Gemm | MatMul)
    return GemmProblem(node) if is_gemm else required_conv(node)


class ProductFamily(CudaFamily):
    """Family of products by one schedule."""

    uses_int32_offsets: ClassVar[bool] = True
    supports_reversed_tiles: ClassVar[bool] = True
    lowering: ClassVar[type[ConvLowering]] = ConvLowering
    """Lowering of convolutions."""

    def unfitted_tactics(
        self,
        problem: ProductProblem,
        shape: GemmShape,
        configs: Collection[tuple[float, TileConfig]],
        limit: int,
        target: CudaTarget,
        reason: str,
    ) -> Iterator[Tactic]:
        """Yield the best ``limit`` tactics of a schedule whose estimates were not fitted.

        Their estimates are raised above the best tile's. An empty reduction has no tiles. Without
        ``configs`` the node is refused for a reason.
        """
        refuse_if(None if configs else reason)
        tiles = (seconds for tile, seconds in tiles_for(shape, target) if tile.split_k == 1)
        best_tile = next(tiles, None)
        if best_tile is None:
            return
        for seconds, config in sorted(configs, key=itemgetter(0))[:limit]:
            hint = _UNFITTED_PENALTY * max(seconds, best_tile)
            yield self.tactic(problem, config, hint)

    def tactic(self, problem: ProductProblem, config: TileConfig, seconds: float) -> Tactic:
        """Return the tactic with some parameters; split-K needs memory for its partial sums."""
        inputs, output = problem.formats
        tactic = Tactic(self.name, config.parameters, inputs, (output,), estimated_seconds=seconds)
        if config.split_k == 1:
            return tactic
        sums = element_count(problem.node.output.tensor.shape) * config.split_k
        return replace(tactic, workspace_bytes=sums * ACCUMULATOR_BYTES)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return problem_of(node).pack(tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        problem = problem_of(node)
        if isinstance(problem, GemmProblem):
            return GemmLowering(problem, tactic, operands).launches()
        return self.lowering(problem, tactic, operands).launches()

    @override
    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        return WRITERS[kernel["schedule"]]
