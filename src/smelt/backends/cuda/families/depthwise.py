"""Family of depthwise convolutions: each channel has its own window, summed in registers.

The kernel is limited by memory. Threads hold neighbouring channels and programs neighbouring
pixels, whose windows overlap.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._iteration_space import Axis
from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import (
    WARP_LANES,
    LaunchWorkload,
    count_of,
    gpu_spec_of,
    seconds_of,
)
from smelt.backends.cuda._implicit_gemm import ImplicitGemmKernel, write_implicit_gemm
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._gemm_launches import launches_of
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type, weights_of
from smelt.backends.cuda.families.conv import ConvLowering, formats_of, is_depthwise, reason_against
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops import Conv, Transpose
from smelt.types import fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node

_ELEMENTS: Final = (1024, 2048, 4096)
"""Elements of the result per program. Chosen without a measurement."""
_CHANNELS: Final = (64, 32)
"""Channels per program: more were never as fast in measurements. On an H200, 128 channels took 1.3
to 2.0 times the best (docs/lab/estimates-on-gpus.md)."""
_WARPS: Final = 4
"""Warps per program. Chosen without a measurement."""
_OFFSET_REGISTERS: Final = (26, 38)
"""Registers of a thread: fixed, and for each 1,024 elements of a program. No measurement is
recorded."""
_INSTRUCTIONS: Final = 3
"""Instructions per multiplication: the product and two conversions. Chosen without a
measurement."""


def _work(node: Node, size: int, width: int, target: CudaTarget) -> LaunchWorkload:
    """Return the workload of programs of ``size`` elements, ``width`` of them channels."""
    _, _, *window = fixed_shape(required_input(node, 1).tensor.shape)
    element_bytes = target.operand_dtype(required_input(node, 0).tensor.dtype).size_bytes
    channels = fixed_extent(node.output.tensor.shape[1])
    positions = count_of(node.output) // channels
    programs = -(-positions // (size // width)) * -(-channels // width)
    read_bytes, written_bytes = (
        element_bytes * count_of(v) for v in (required_input(node, 0), node.output)
    )
    products = prod(window) * size
    base, per_1024 = _OFFSET_REGISTERS
    flops = gpu_spec_of(target).cuda_core_flops / target.multiprocessors
    return LaunchWorkload(
        programs=programs,
        num_warps=_WARPS,
        registers=base + per_1024 * size / 1024,
        shared_bytes=0,
        steps=1,
        num_stages=1,
        step_seconds=2.0 * _INSTRUCTIONS * products / flops,
        step_overhead_seconds=0.0,
        dependency_seconds=0.0,
        step_bytes=element_bytes * products,
        epilogue_bytes=element_bytes * size,
        accumulators=size / (_WARPS * WARP_LANES),
        l2_read_bytes=float(programs) * size * 2 * element_bytes,
        source_bytes=read_bytes,
        moved_bytes=read_bytes + written_bytes,
    )


class DepthwiseFamily(Family[CudaTarget]):
    """Family of convolutions with one filter per channel."""

    name: ClassVar[str] = "depthwise"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or root.group == 1:
            return
        if not is_depthwise(node, root):
            yield Refusal(self.name, "the convolution is not depthwise, or the window is too large")
            return
        if reason := reason_against(node):
            yield Refusal(self.name, reason)
            return
        inputs, output = formats_of(node)
        channels = fixed_extent(node.output.tensor.shape[1])
        widths = [w for w in _CHANNELS if w < 2 * channels] or [_CHANNELS[-1]]
        for size, width in ((s, w) for s in _ELEMENTS for w in widths):
            options = parameters(tile=(size // width, width, 1), num_warps=_WARPS)
            seconds = seconds_of(_work(node, size, width, target), gpu_spec_of(target))
            yield Tactic(self.name, options, inputs, (output,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        order = (*range(2, weights.type.rank), 1, 0)
        taps = Constant.derive(f"{weights.name}.taps_of_channels", Transpose(order), weights)
        return (as_factor(taps, factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(Conv, node)
        lowering = ConvLowering(node, root, tactic, operands)
        options = tactic.options
        kernel = ImplicitGemmKernel(
            schedule="depthwise",
            stack=(),
            run=1,
            inner_k_strides=(0, 0),
            tap_stride=0,
            depth=0,
            precision="",
            prefetches_weights=False,
            prefetches_epilogue=False,
            split_k=1,
            split_k_partials=1,
            split_k_stride=0,
            tile=cast("tuple[int, int, int]", options["tile"]),
            num_warps=options.integer("num_warps"),
            num_stages=1,
            **lowering.common(),
        )
        strides = (lowering.x.strides[1], 0, *lowering.strides(1))
        iteration_space = lowering.iteration_space(Axis(root.group, strides), 1)
        return launches_of(self.name, kernel, iteration_space, lowering.views, lowering.scalars)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_implicit_gemm(kernel)
