"""Family of depthwise convolutions: each channel has its own window, summed in registers.

The kernel is limited by memory. Threads hold neighbouring channels and programs neighbouring
pixels, whose windows overlap.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_as
from smelt.backends._iteration_space import Axis
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import count_of, gpu_spec_of
from smelt.backends.cuda._product_costs import depthwise_seconds
from smelt.backends.cuda._product_kernels import ImplicitGemmKernel
from smelt.backends.cuda._product_schedules import TileConfig
from smelt.backends.cuda.families._conv_problem import ConvLowering, ConvProblem, conv_problem_of
from smelt.backends.cuda.families._gemm_launches import GemmIterationSpace
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type, weights_of
from smelt.backends.cuda.families._product_family import ProductFamily
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops import Conv, Transpose
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Node

_ELEMENTS: Final = (1024, 2048, 4096)
"""Elements of the result per program. Chosen without a measurement."""
_CHANNELS: Final = (64, 32)
"""Channels per program: more were never as fast in measurements. On an H200, 128 channels took 1.3
to 2.0 times the best (docs/lab/estimates-on-gpus.md)."""
_WARPS: Final = 4
"""Warps per program. Chosen without a measurement."""


class DepthwiseFamily(ProductFamily):
    """Family of convolutions with one filter per channel."""

    name: ClassVar[str] = "depthwise"

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        problem = conv_problem_of(node)
        if problem is None or problem.is_sum or problem.root.group == 1:
            return
        if not problem.is_depthwise:
            yield Refusal(self.name, "the convolution is not depthwise, or the window is too large")
            return
        if reason := problem.reason:
            yield Refusal(self.name, reason)
            return
        inputs, output = problem.formats
        channels = problem.root.group
        widths = [w for w in _CHANNELS if w < 2 * channels] or [_CHANNELS[-1]]
        for size, width in ((s, w) for s in _ELEMENTS for w in widths):
            config = TileConfig((size // width, width, 1), _WARPS, num_stages=1)
            seconds = _seconds(problem, config, target)
            options = parameters(tile=config.tile, num_warps=_WARPS)
            yield Tactic(self.name, options, inputs, (output,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        order = (*range(2, weights.type.rank), 1, 0)
        taps = Constant.derive(f"{weights.name}.taps_of_channels", Transpose(order), weights)
        return (as_factor(taps, factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        problem = ConvProblem(node, root_as(Conv, node))
        return _DepthwiseLowering(problem, tactic, operands).launches()


class _DepthwiseLowering(ConvLowering):
    """Lowering with all channels as columns, which are not summed."""

    @override
    def kernel(self) -> ImplicitGemmKernel:
        return ImplicitGemmKernel(
            schedule="depthwise",
            run=1,
            inner_k_strides=(0, 0),
            precision="",
            prefetches_weights=False,
            **self.window_fields(),
            **self.options,
        )

    @override
    def iteration_space(self) -> GemmIterationSpace:
        columns = Axis(self.root.group, (self.x.strides[1], 0, *self.strides(1)))
        return GemmIterationSpace(*self.rows(), columns)


def _seconds(problem: ConvProblem, config: TileConfig, target: CudaTarget) -> float:
    """Return the estimated seconds of a launch."""
    filters, _, *window = problem.filter_shape
    size, gpu = target.operand_dtype(problem.dtype).size_bytes, gpu_spec_of(target)
    values = (required_input(problem.node, 0), problem.node.output)
    read_bytes, written_bytes = (size * count_of(value) for value in values)
    return depthwise_seconds(filters, prod(window), read_bytes, written_bytes, size, config, gpu)
