"""Depthwise convolution: each channel with its own window, summed in registers.

It moves memory and little else: threads hold neighbouring channels, programs neighbouring pixels,
whose windows overlap.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._axes import Axis
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of
from smelt.backends.cuda._costs import WARP_LANES, Work, count_of, gpu_of, seconds_of
from smelt.backends.cuda._product import ProductKernel, write_product
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._grid import launches_of
from smelt.backends.cuda.families._nodes import as_factor, factor_type, weights_of
from smelt.backends.cuda.families.conv import ConvLowering, formats_of, is_depthwise, reason_against
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops.conv import Conv
from smelt.ops.transpose import Transpose
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node

_ELEMENTS: Final = (1024, 2048, 4096)
"""Of a program."""
_CHANNELS: Final = (64, 32)
"""More at a time have never been as fast."""
_WARPS: Final = 4
_PLACES_REGISTERS: Final = (26, 38)
"""Of a thread, and for each 1,024 elements of a program."""
_INSTRUCTIONS: Final = 3
"""For each product: two conversions beside it."""


def _work(node: Node, size: int, width: int, target: CudaTarget) -> Work:
    """What programs of so many elements do, so many channels wide."""
    _, _, *window = (cast("int", e) for e in value_of(node, 1).tensor.shape)
    kind = target.factors(value_of(node, 0).tensor.dtype).size_bytes
    channels = cast("int", node.output.tensor.shape[1])
    places = count_of(node.output) // channels
    programs = -(-places // (size // width)) * -(-channels // width)
    read, written = (kind * count_of(v) for v in (value_of(node, 0), node.output))
    taken = prod(window) * size
    own, each = _PLACES_REGISTERS
    flops = gpu_of(target).plain_flops / target.multiprocessors
    return Work(
        programs=programs,
        warps=_WARPS,
        registers=own + each * size / 1024,
        shared_bytes=0,
        steps=1,
        held=1,
        step_seconds=2.0 * _INSTRUCTIONS * taken / flops,
        turn_seconds=0.0,
        chain_seconds=0.0,
        step_bytes=kind * taken,
        end_bytes=kind * size,
        sums=size / (_WARPS * WARP_LANES),
        fetched_bytes=float(programs) * size * 2 * kind,
        source_bytes=read,
        moved_bytes=read + written,
    )


class DepthwiseFamily(Family[CudaTarget]):
    """One filter for each channel."""

    name: ClassVar[str] = "depthwise"
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or root.group == 1:
            return
        if not is_depthwise(node, root):
            yield Refusal(self.name, "filters are not one for each channel, or too large")
            return
        if reason := reason_against(node):
            yield Refusal(self.name, reason)
            return
        inputs, output = formats_of(node)
        channels = cast("int", node.output.tensor.shape[1])
        widths = [w for w in _CHANNELS if w < 2 * channels] or [_CHANNELS[-1]]
        for size, width in ((s, w) for s in _ELEMENTS for w in widths):
            options = parameters(tile=(size // width, width, 1), warps=_WARPS)
            seconds = seconds_of(_work(node, size, width, target), gpu_of(target))
            yield Tactic(self.name, options, inputs, (output,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        order = (*range(2, weights.type.rank), 1, 0)
        taps = Constant.derive(f"{weights.name}.taps_of_channels", Transpose(order), weights)
        return (as_factor(taps, factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = cast("Conv", root_of(node)[0])
        lowering = ConvLowering(node, root, tactic, operands)
        options = dict(tactic.parameters)
        kernel = ProductKernel(
            sums="channels",
            stack=(),
            run=1,
            run_strides=(0, 0),
            tap_stride=0,
            depth=0,
            precision="",
            asks=False,
            early=False,
            pieces=1,
            added=1,
            piece_stride=0,
            tile=cast("tuple[int, int, int]", options["tile"]),
            warps=cast("int", options["warps"]),
            pipeline=1,
            **lowering.common(),
        )
        strides = (lowering.x.strides[1], 0, *lowering.strides(1))
        grid = lowering.grid(Axis(root.group, strides), 1)
        return launches_of(self.name, kernel, grid, lowering.views, lowering.scalars)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_product(kernel)
