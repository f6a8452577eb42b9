"""Family of fused pairs: a convolution and a pointwise one that reads its result, in one launch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, cast

from smelt.backends import root_as
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import Axis
from smelt.backends._node_operands import required_input
from smelt.backends._pair_nodes import find_pair_nodes, pair_nodes_of
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._fused_pair import FUSED_PAIR, FusedPairKernel, write_fused_pair
from smelt.backends.cuda._kernel_source import MIN_VECTOR
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import planned_epilogue
from smelt.backends.cuda.families._fused_pair_tiles import (
    first_shape,
    fused_pair_tiles,
    second_columns,
)
from smelt.backends.cuda.families._gemm_launches import kernel_on
from smelt.backends.cuda.families._gemm_operands import wide_operand_reason
from smelt.backends.cuda.families._gemm_tiles import kernel_options
from smelt.backends.cuda.families.conv import (
    ConvFamily,
    ConvLowering,
    bias_count,
    formats_of,
    reason_against,
)
from smelt.backends.cuda.families.conv_sum import ConvSumFamily
from smelt.engine import Launch, View, parameters
from smelt.ops import Conv, ConvSum
from smelt.types import DType, Layout, ceil_div, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node, Op
    from smelt.types import Dim


class FusedPairConvFamily(Family[CudaTarget]):
    """Family of fused pairs whose intermediate stays on chip."""

    name: ClassVar[str] = FUSED_PAIR
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        pair_nodes = find_pair_nodes(node)
        if pair_nodes is None:
            return
        if reason := _unsupported_reason(pair_nodes, target):
            yield Refusal(self.name, reason)
            return
        first, intermediate = formats_of(pair_nodes.first)
        second, out = formats_of(pair_nodes.second)
        inputs = (*first, *second[1:])
        outputs = (out, intermediate) if pair_nodes.returns_intermediate else (out,)
        for choice, seconds in fused_pair_tiles(pair_nodes, target):
            options = parameters(**dataclasses.asdict(choice))
            yield Tactic(self.name, options, inputs, outputs, cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        pair_nodes = pair_nodes_of(node)
        first = ConvSumFamily() if _is_sum(pair_nodes) else ConvFamily()
        return (
            *first.pack(pair_nodes.first, tactic),
            *ConvFamily().pack(pair_nodes.second, tactic),
        )

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return (_FusedPairLowering(pair_nodes_of(node), tactic, operands).launch(),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_fused_pair(kernel)


def can_fuse_pair(first: Node, second: Node) -> bool:
    """Return whether the kernel supports two convolutions, the second pointwise on the first."""
    return _unsupported_pair_reason(root_of(first)[0], root_of(second)[0]) is None


def _is_sum(pair_nodes: PairNodes) -> bool:
    """Return whether the first product sums two images."""
    return isinstance(root_of(pair_nodes.first)[0], ConvSum)


def _unsupported_pair_reason(first: Op, second: Op) -> str | None:
    """Return why no kernel computes a pair of ops, whatever their operands, or None."""
    first_conv = first.first if isinstance(first, ConvSum) else first
    if not isinstance(first_conv, Conv) or not isinstance(second, Conv):
        return "the two ops are not convolutions"
    if first_conv.group > 1 or second.group > 1:
        return "grouped convolution is not supported"
    if set(second.kernel_shape) != {1} or any(second.pads) or set(second.strides) != {1}:
        return "the second convolution is not pointwise (1x1, stride 1, no padding)"
    return None


def _unsupported_reason(pair_nodes: PairNodes, target: CudaTarget) -> str | None:
    """Return why the family cannot run a pair of nodes, or None."""
    if reason := _unsupported_pair_reason(
        root_of(pair_nodes.first)[0], root_of(pair_nodes.second)[0]
    ):
        return reason
    for node in (pair_nodes.first, pair_nodes.second):
        if reason := reason_against(node):
            return reason
    if pair_nodes.first.output in pair_nodes.second.inputs[1:]:
        return "the epilogue of the second convolution reads the result of the first"
    if target.uses_half2:
        return "half2: images are stored packed in pairs"
    shape = first_shape(pair_nodes, target)
    if not shape.run or shape.run % MIN_VECTOR:
        return "the channels of the first input are not a multiple of the vector width"
    return wide_operand_reason(shape.dtype)


# ---- lowering


class _FusedPairLowering(ConvLowering):
    """Lowering of the first convolution, with the second's operands on the same rows."""

    def __init__(self, pair_nodes: PairNodes, tactic: Tactic, operands: Operands) -> None:
        first, root = pair_nodes.first, root_of(pair_nodes.first)[0]
        count, kind = len(first.inputs), first.output.tensor
        if pair_nodes.returns_intermediate:
            intermediate = operands.outputs[1]
        else:
            strides = contiguous_strides(kind, Layout.CHANNELS_LAST)
            intermediate = View(0, 0, DType.FLOAT16, kind.shape, strides)
        first_operands = Operands(operands.inputs[:count], (intermediate,), operands.packed[:1])
        is_sum = isinstance(root, ConvSum)
        first_conv = root.first if isinstance(root, ConvSum) else cast("Conv", root)
        second = root.second if isinstance(root, ConvSum) else None
        super().__init__(first, first_conv, tactic, first_operands, second=second)
        self.pair_nodes, self.returns_intermediate = pair_nodes, pair_nodes.returns_intermediate
        self.factor_count = 3 if is_sum else 2
        out = operands.outputs[0]
        second_operands = Operands(
            (intermediate, *operands.inputs[count:]), (out,), operands.packed[1:]
        )
        self.second_lowering = ConvLowering(
            pair_nodes.second, root_as(Conv, pair_nodes.second), tactic, second_operands
        )
        stored: list[View] = self.views if pair_nodes.returns_intermediate else self.views[:-1]
        self.weights = len(stored)
        """Number of the operand that holds the second convolution's weights."""
        self.views: list[View] = [*stored, *self.second_lowering.views[1:]]

    @override
    def strides(self, axis: int) -> tuple[Dim, ...]:
        """Return the strides of all operands after the first convolution's weights."""
        first_strides = super().strides(axis)[: None if self.returns_intermediate else -1]
        if axis == 1:
            return (*first_strides, *[0] * (len(self.views) - self.weights))
        return (*first_strides, 0, *self.second_lowering.strides(axis))

    @override
    def constants(self) -> tuple[bool, ...]:
        first_constants = super().constants()[: None if self.returns_intermediate else -1]
        return (*first_constants, *self.second_lowering.constants()[1:])

    def launch(self) -> Launch:
        """Return the launch."""
        filters, depth, *_ = fixed_shape(required_input(self.node, 1).tensor.shape)
        columns, second_node = second_columns(self.pair_nodes), self.pair_nodes.second
        biases = bias_count(second_node)
        second_inner_k = 0 if self.second is None else fixed_extent(self.second[1].shape[1])
        first_depth, second_depth = (fixed_extent(view.shape[1]) for view in self._packed())
        before = [0] * (self.weights + 1)
        second_strides = (*before, *self.second_lowering.strides(1))
        options: dict[str, Any] = {**kernel_options(self.tactic), "schedule": FUSED_PAIR}
        kernel = FusedPairKernel(
            stack=(),
            run=depth,
            inner_k_strides=(self.scalars.json(self.x.strides[1]), 1),
            tap_stride=depth,
            depth=first_depth,
            factors=self.factor_count,
            second_inner_k=second_inner_k,
            second_columns=(columns, *self.scalars.all_json(second_strides)),
            second_depth=second_depth,
            second_bias=biases > 0,
            second_stages=planned_epilogue(second_node, Layout.CHANNELS_LAST, biases).stages,
            weights=self.weights,
            returns_intermediate=self.returns_intermediate,
            **self.common(),
            **options,
        )
        iteration_space = self.iteration_space(Axis(filters, (0, first_depth, *self.strides(1))), 1)
        kernel = kernel_on(kernel, iteration_space, self.views, self.scalars)
        row_programs = kernel.programs or ceil_div(iteration_space.row_count, kernel.tile[0])
        chunks = ceil_div(columns, kernel.second_tile) * row_programs
        last = len(self.views) - 1
        writes = (self.weights - 1, last) if self.returns_intermediate else (last,)
        spec = kernel.spec(self.tactic.family)
        return Launch(spec, tuple(self.views), writes, self.scalars.values, chunks)

    def _packed(self) -> tuple[View, View]:
        """Return the packed weights of both convolutions."""
        return self.views[1], self.views[self.weights]
