"""Family of sums of two convolutions, the second pointwise, as one longer reduction."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar

from smelt.backends import root_as
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import count_of
from smelt.backends.cuda._implicit_gemm import write_implicit_gemm
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._gemm_operands import (
    as_factor,
    factor_type,
    taps_in_rows,
    weights_of,
)
from smelt.backends.cuda.families._gemm_tiles import GemmShape, tiles_for
from smelt.backends.cuda.families.conv import (
    ConvLowering,
    end_in_vectors,
    formats_of,
    reason_against,
)
from smelt.ir import Constant
from smelt.ops import Concat, ConvSum
from smelt.types import fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node


class ConvSumFamily(Family[CudaTarget]):
    """Reductions run over the first image's taps and channels, then over the second's channels."""

    name: ClassVar[str] = "conv_sum"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, ConvSum):
            return
        if reason := reason_against(node):
            yield Refusal(self.name, reason)
            return
        inputs, output = formats_of(node)
        for choice, seconds in tiles_for(sum_shape(node, root, target), target):
            if choice.split_k == 1:
                yield choice.tactic(self.name, inputs, output, 0, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """Return each filter of the first convolution, tap by tap, followed by the second's."""
        first, second = (taps_in_rows(weights_of(node, index)) for index in (1, 3))
        concatenated = Constant.derive(f"{first.name}+{second.name}", Concat(1), first, second)
        return (as_factor(end_in_vectors(concatenated), factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(ConvSum, node)
        return ConvLowering(node, root.first, tactic, operands, second=root.second).launches()

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)


def sum_shape(node: Node, root: ConvSum, target: CudaTarget) -> GemmShape:
    """Return the shape of the product that the sum computes."""
    filters, depth, *window = fixed_shape(required_input(node, 1).tensor.shape)
    second_inner_k = fixed_extent(required_input(node, 3).tensor.shape[1])
    dtype = target.operand_dtype(required_input(node, 0).tensor.dtype)
    image = count_of(required_input(node, 0)) + count_of(required_input(node, 2))
    rows = count_of(node.output) // filters
    total_k = depth * prod(window) + second_inner_k
    group = root.first.group
    return GemmShape(group, rows, filters, total_k, dtype, run=depth, image=image, images=2)
