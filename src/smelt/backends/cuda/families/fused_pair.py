"""Family of fused pairs: a convolution and a pointwise one that reads its result, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from smelt.backends._base import Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._pair_nodes import find_pair_nodes, pair_nodes_of
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._fused_pair import FUSED_PAIR, write_fused_pair
from smelt.backends.cuda._kernel_source import MIN_VECTOR
from smelt.backends.cuda._product_kernels import FusedPairKernel
from smelt.backends.cuda.families._conv_problem import ConvLowering, required_conv
from smelt.backends.cuda.families._fused_pair_tiles import fused_pair_tiles
from smelt.backends.cuda.families._gemm_launches import kernel_on
from smelt.backends.cuda.families._gemm_operands import wide_operand_reason
from smelt.engine import Launch, View
from smelt.ops import Conv, ConvSum
from smelt.types import DType, Layout, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._pair_nodes import PairNodes
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node, Op
    from smelt.types import Dim


class FusedPairConvFamily(CudaFamily):
    """Family of fused pairs whose intermediate stays on chip."""

    name: ClassVar[str] = FUSED_PAIR
    supports_reduced_precision: ClassVar[bool] = True
    uses_int32_offsets: ClassVar[bool] = True
    supports_reversed_tiles: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        pair_nodes = find_pair_nodes(node)
        if pair_nodes is None:
            return
        if reason := _unsupported_reason(pair_nodes, target):
            yield Refusal(self.name, reason)
            return
        first, intermediate = required_conv(pair_nodes.first).formats
        second, out = required_conv(pair_nodes.second).formats
        inputs = (*first, *second[1:])
        outputs = (out, intermediate) if pair_nodes.returns_intermediate else (out,)
        for choice, seconds in fused_pair_tiles(pair_nodes, target):
            yield Tactic(self.name, choice.parameters, inputs, outputs, cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        pair_nodes = pair_nodes_of(node)
        problems = map(required_conv, (pair_nodes.first, pair_nodes.second))
        return tuple(constant for problem in problems for constant in problem.pack(tactic))

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
        if reason := required_conv(node).reason:
            return reason
    if pair_nodes.first.output in pair_nodes.second.inputs[1:]:
        return "the epilogue of the second convolution reads the result of the first"
    if target.uses_half2:
        return "half2: images are stored packed in pairs"
    shape = required_conv(pair_nodes.first).shape(target)
    if not shape.run or shape.run % MIN_VECTOR:
        return "the channels of the first input are not a multiple of the vector width"
    return wide_operand_reason(shape.dtype)


# ---- lowering


class _FusedPairLowering(ConvLowering):
    """Lowering of the first convolution, with the second's operands on the same rows."""

    def __init__(self, pair_nodes: PairNodes, tactic: Tactic, operands: Operands) -> None:
        first = pair_nodes.first
        count, kind = len(first.inputs), first.output.tensor
        if pair_nodes.returns_intermediate:
            intermediate = operands.outputs[1]
        else:
            strides = contiguous_strides(kind, Layout.CHANNELS_LAST)
            intermediate = View(0, 0, DType.FLOAT16, kind.shape, strides)
        first_operands = Operands(operands.inputs[:count], (intermediate,), operands.packed[:1])
        super().__init__(required_conv(first), tactic, first_operands)
        self.returns_intermediate = pair_nodes.returns_intermediate
        out = operands.outputs[0]
        second_operands = Operands(
            (intermediate, *operands.inputs[count:]), (out,), operands.packed[1:]
        )
        second = required_conv(pair_nodes.second)
        self.second_lowering = ConvLowering(second, tactic, second_operands)
        stored: list[View] = self.views if pair_nodes.returns_intermediate else self.views[:-1]
        self.weight_operand = len(stored)
        """Number of the operand that holds the second convolution's weights."""
        self.views: list[View] = [*stored, *self.second_lowering.views[1:]]
        first_constants = self.constants[: len(stored)]
        self.constants = (*first_constants, *self.second_lowering.constants[1:])

    @override
    def strides(self, axis: int | None) -> tuple[Dim, ...]:
        """Return the strides of all operands after the first convolution's weights."""
        first_strides = super().strides(axis)[: None if self.returns_intermediate else -1]
        if axis == 1:
            return (*first_strides, *[0] * (len(self.views) - self.weight_operand))
        return (*first_strides, 0, *self.second_lowering.strides(axis))

    def launch(self) -> Launch:
        """Return the launch."""
        second = self.second_lowering
        before = [0] * (self.weight_operand + 1)
        second_strides = self.scalars.all_json((*before, *second.strides(1)))
        epilogue = second.problem.epilogue_fields()
        options: dict[str, Any] = {**self.options, "schedule": FUSED_PAIR}
        kernel = FusedPairKernel(
            second_columns=(second.filters, *second_strides),
            second_depth=second.column_length,
            second_bias=epilogue["bias"],
            second_stages=epilogue["stages"],
            weights=self.weight_operand,
            returns_intermediate=self.returns_intermediate,
            **self.product_fields(),
            **self.window_fields(),
            **options,
        )
        iteration_space = self.iteration_space()
        kernel = kernel_on(kernel, iteration_space, self.views, self.scalars)
        row_programs = kernel.programs or ceil_div(iteration_space.row_count, kernel.tile[0])
        chunks = ceil_div(second.filters, kernel.second_tile) * row_programs
        last = len(self.views) - 1
        writes = (self.weight_operand - 1, last) if self.returns_intermediate else (last,)
        spec = kernel.spec(self.tactic.family)
        return Launch(spec, tuple(self.views), writes, self.scalars.values, chunks)
