"""Family of depthwise convolutions: each channel has its own window, summed in registers.

The kernel is limited by memory. Threads hold neighbouring channels and programs neighbouring
pixels, whose windows overlap.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import NodeRefusedError, Tactic, refuse_if
from smelt.backends._iteration_space import Axis
from smelt.backends.cuda._cost_model import gpu_spec_of
from smelt.backends.cuda._product_costs import depthwise_seconds
from smelt.backends.cuda._product_specs import ImplicitGemmKernel
from smelt.backends.cuda._tile_configs import TileConfig
from smelt.backends.cuda.families._conv_problem import ConvLowering, conv_problem_of
from smelt.backends.cuda.families._product_family import ProductFamily
from smelt.backends.cuda.families._product_launches import GemmIterationSpace
from smelt.backends.cuda.families._product_operands import as_factor, factor_type, weights_of
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops import Transpose
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.ir import Node

_ELEMENTS: Final = (1024, 2048, 4096)
"""Elements of the result per program. Chosen without a measurement."""
_CHANNELS: Final = (64, 32)
"""Channels per program: more were never as fast in measurements. On an H200, 128 channels took 1.3
to 2.0 times the best (docs/lab/estimates-on-gpus.md)."""
_WARPS: Final = 4
"""Warps per program. Chosen without a measurement."""


class _DepthwiseLowering(ConvLowering):
    """Lowering with all channels as columns, which are not summed."""

    @override
    def kernel(self) -> ImplicitGemmKernel:
        return ImplicitGemmKernel(
            schedule="depthwise",
            run=1,
            inner_k_strides=(0, 0),
            input_precision="",
            prefetches_weights=False,
            **self.window_fields(),
            **self.options,
        )

    @override
    def iteration_space(self) -> GemmIterationSpace:
        columns = Axis(self.root.group, (self.x.strides[1], 0, *self.strides(1)))
        return GemmIterationSpace(*self.rows(), columns)


class DepthwiseFamily(ProductFamily):
    """Family of convolutions with one filter per channel."""

    name: ClassVar[str] = "depthwise"
    lowering: ClassVar[type[ConvLowering]] = _DepthwiseLowering

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        problem = conv_problem_of(node)
        if problem is None or problem.is_sum or problem.root.group == 1:
            return
        if not problem.is_depthwise:
            raise NodeRefusedError(
                "the convolution is not depthwise (one filter per channel), or its window is too "
                f"large: group is {problem.root.group}, and the weights have shape "
                f"{list(problem.filter_shape)}"
            )
        refuse_if(problem.reason)
        (inputs, output), shape = problem.formats, problem.shape(target)
        widths = [w for w in _CHANNELS if w < 2 * shape.matrices] or [_CHANNELS[-1]]
        for size, width in product(_ELEMENTS, widths):
            config = TileConfig((size // width, width, 1), _WARPS, num_stages=1)
            seconds = depthwise_seconds(shape, config, gpu_spec_of(target))
            options = parameters(tile=config.tile, num_warps=_WARPS)
            yield Tactic(self.name, options, inputs, (output,), estimated_seconds=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        order = (*range(2, weights.type.rank), 1, 0)
        taps = Constant.derive(f"{weights.name}.taps_of_channels", Transpose(order), weights)
        return (as_factor(taps, factor_type(tactic), tactic),)
