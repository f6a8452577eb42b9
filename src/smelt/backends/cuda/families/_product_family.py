"""Base of the families of products: each is a schedule, the problem answers everything else."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._implicit_gemm import write_implicit_gemm
from smelt.backends.cuda.families._conv_problem import conv_problem_of
from smelt.backends.cuda.families._gemm_problem import GemmProblem
from smelt.backends.cuda.families._gemm_tiles import tiles_for
from smelt.errors import InternalError
from smelt.ops import Gemm, MatMul
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smelt.backends._base import Operands, Tactic
    from smelt.backends.cuda._product_schedules import GemmShape, TileConfig
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda.families._product_problem import ProductProblem
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node

_UNFITTED_PENALTY: Final = 1.01
"""Factor on the estimates of kernels that the cost model was not fitted to, relative to the best
tile: they are not chosen without measurements."""


def problem_of(node: Node) -> ProductProblem | None:
    """Return the description of a product; None for any other op."""
    if isinstance(root_of(node)[0], Gemm | MatMul):
        return GemmProblem(node)
    return conv_problem_of(node)


class ProductFamily(CudaFamily):
    """Family of products by one schedule."""

    supports_reduced_precision: ClassVar[bool] = True
    uses_int32_offsets: ClassVar[bool] = True
    supports_reversed_tiles: ClassVar[bool] = True

    def unfitted_tactics(
        self,
        problem: ProductProblem,
        shape: GemmShape,
        configs: Iterable[tuple[float, TileConfig]],
        limit: int,
        target: CudaTarget,
    ) -> Iterator[Tactic]:
        """Yield the best ``limit`` tactics of a schedule whose estimates were not fitted.

        Their estimates are raised above the best tile's. An empty reduction has no tiles.
        """
        tiles = (seconds for tile, seconds in tiles_for(shape, target) if tile.split_k == 1)
        best_tile = next(tiles, None)
        if best_tile is None:
            return
        for seconds, config in sorted(configs, key=itemgetter(0))[:limit]:
            hint = _UNFITTED_PENALTY * max(seconds, best_tile)
            yield config.tactic(self.name, *problem.formats, problem.partial_bytes, hint)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return _required_problem(node).pack(tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _required_problem(node).lowering(tactic, operands).launches()

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)


def _required_problem(node: Node) -> ProductProblem:
    """Return the description of a node that has tactics."""
    problem = problem_of(node)
    if problem is None:
        raise InternalError(f"{node} has tactics, but is no product")
    return problem
