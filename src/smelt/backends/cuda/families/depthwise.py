"""Depthwise convolution: each channel with its own window, summed in registers.

It moves memory and little else: threads hold neighbouring channels, programs neighbouring pixels,
whose windows overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._axes import Axis
from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of
from smelt.backends.cuda._costs import memory_seconds
from smelt.backends.cuda._product import ProductKernel, write_product
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._grid import launches_of
from smelt.backends.cuda.families._nodes import as_factor
from smelt.backends.cuda.families.conv import ConvLowering, formats_of, is_depthwise, reason_against
from smelt.engine import parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops.conv import Conv
from smelt.ops.transpose import Transpose
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node
    from smelt.types import TensorFormat

_ELEMENTS: Final = (1024, 2048, 4096)
"""Of a program."""
_CHANNELS: Final = (32, 64, 128)


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
        widths = [w for w in _CHANNELS if w < 2 * channels] or [_CHANNELS[0]]
        for rank, (size, width) in enumerate((s, w) for s in _ELEMENTS for w in widths):
            options = parameters(tile=(size // width, width, 1), warps=4)
            seconds = memory_seconds(node) * (1 + 0.02 * rank)
            yield Tactic(self.name, options, inputs, (output,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = value_of(node, 1).constant
        if weights is None:
            raise InternalError(f"{node} has tactics, but its weights are not constant")
        order = (*range(2, weights.type.rank), 1, 0)
        taps = Constant.derive(f"{weights.name}.taps_of_channels", Transpose(order), weights)
        return (as_factor(taps, cast("TensorFormat", tactic.inputs[0]).dtype, tactic),)

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
