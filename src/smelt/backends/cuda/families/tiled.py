"""Products with one program for each tile of the result, and for each split of the reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends.cuda.families._gemm_tiles import tiles_for
from smelt.backends.cuda.families._product_family import ProductFamily, problem_of
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
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        problem = problem_of(node)
        if problem is None or not isinstance(root_of(node)[0], self.roots):
            return
        if reason := problem.dense_reason:
            yield Refusal(self.name, reason)
            return
        formats, partial_bytes = problem.formats, problem.partial_bytes
        for config, seconds in tiles_for(problem.shape(target), target):
            if config.split_k == 1 or problem.supports_split_k:
                yield config.tactic(self.name, *formats, partial_bytes, seconds)


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
