"""Products with one program for each tile of the result, and for each split of the reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Tactic, refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda.families._product_family import ProductFamily, problem_of
from smelt.backends.cuda.families._tile_candidates import tiles_for
from smelt.ops import Conv, ConvSum, Gemm, MatMul
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.ir import Node, Op


class _TiledFamily(ProductFamily):
    """Family of one kind of product; caches know each kind by its own name."""

    roots: ClassVar[tuple[type[Op], ...]]
    """Ops that nodes may compute before their epilogue."""

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(root_of(node)[0], self.roots):
            return
        problem = problem_of(node)
        refuse_if(problem.dense_reason)
        for config, seconds in tiles_for(problem.shape(target), target):
            if config.split_k == 1 or problem.supports_split_k:
                yield self.tactic(problem, config, seconds)


class ConvFamily(_TiledFamily):
    """Family of convolutions of any rank and grouping."""

    name: ClassVar[str] = "conv"
    roots: ClassVar[tuple[type[Op], ...]] = (Conv,)


class ConvSumFamily(_TiledFamily):
    """Family of sums of two convolutions, the second pointwise, as one longer reduction."""

    name: ClassVar[str] = "conv_sum"
    roots: ClassVar[tuple[type[Op], ...]] = (ConvSum,)


class GemmFamily(_TiledFamily):
    """Family of matrix products, batched or not, with operands of any strides."""

    name: ClassVar[str] = "gemm"
    roots: ClassVar[tuple[type[Op], ...]] = (Gemm, MatMul)
