"""Family of pooling over windows of any rank; positions outside the image never count."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import NodeRefusedError, Operands, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import count_of, memory_seconds
from smelt.backends.cuda._elementwise_kernel import tile_side
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, KernelWriter, kernel_launch
from smelt.backends.cuda._window_writer import WindowWriter, axes_of, windows_of
from smelt.backends.cuda.families._epilogue import FLOATS, extra_views, plan_epilogue
from smelt.engine import parameters
from smelt.ops import AveragePool, MaxPool
from smelt.types import (
    DType,
    Layout,
    TensorFormat,
    ceil_div,
    element_count,
    guessed_extent,
    override,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Json, Launch, Parameters, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_SIZES: Final = ((512, 2), (1024, 4), (2048, 4))
"""(elements of the result per program, warps). Chosen without a measurement."""
_UNROLLED_TAPS: Final = 16
"""Maximum number of taps for which the loop is unrolled. Covers windows of 4x4; unrolled 3x3
windows take 64 µs instead of 78 with ResNet-50's max pooling at batch 128, with other changes
(docs/lab/other-kernels-on-gpus.md)."""
_LEAST: Final = {DType.INT8: "-128", DType.UINT8: "0"}
"""Least value of integer types."""


class PoolWriter(WindowWriter):
    """Writer of a pool."""

    @override
    def write(self) -> str:
        s = self.s
        self.find_tile()
        kind = s.dtypes[0]
        neutral = "0.0" if self.k["is_mean"] else _LEAST.get(kind, "float('-inf')")
        accumulator_type = "tl.float32" if self.k["is_mean"] else LANGUAGE_TYPES[kind]
        s.line(f"acc = tl.full([{self.rows}, {self.columns}], {neutral}, {accumulator_type})")
        s.line(f"count = tl.zeros([{self.rows}], tl.int32)")
        loop = "tl.static_range" if self.taps <= _UNROLLED_TAPS else "range"
        with s.block(f"for tap in {loop}(0, {self.taps}):"):
            self.take_tap(neutral)
        result = "acc.to(tl.float32)" if kind in FLOATS else "acc.to(tl.int32)"
        s.line("v = acc / count[:, None]" if self.k["is_mean"] else f"v = {result}")
        return self.finish("v")

    def find_tile(self) -> None:
        """Write the coordinates of the program's positions and channels."""
        s = self.s
        channels = s.extent(self.axes[-1][0])
        s.find_tile("c", channels, self.k["tile"], s.program)
        s.line(f"c_ok = (c < {channels})[None, :]")
        s.line(f"i_ok = i < {s.extent(self.k['places'])}")
        s.line("m = i_ok[:, None] & c_ok")
        s.unravel("i", [axis[0] for axis in self.axes[:-1]], self.names)
        for a, (_, step, _, before, *_) in enumerate(self.windows):
            s.line(f"at{a} = d{a} * {step} - {before}")
        s.line(f"base = {s.sum_of(('n', self.axes[0][1]))}")
        s.line(f"channel = {s.sum_of(('c', self.axes[-1][1]))}")

    def take_tap(self, neutral: str) -> None:
        """Write the accumulation of one tap."""
        s = self.s
        s.coordinates("tap", self.windows, "t")
        inside, counted, terms = ["i_ok"], ["i_ok"], list[tuple[str, "Json"]]()
        for a, (_, _, dilation, before, after, extent, stride) in enumerate(self.windows):
            end = s.extent(extent)
            s.line(f"h{a} = at{a} + t{a} * {dilation}")
            inside.append(f"(h{a} >= 0) & (h{a} < {end})")
            counted.append(f"(h{a} >= -{before}) & (h{a} < {end} + {after})")
            terms.append((f"h{a}", stride))
        s.line(f"ok = {' & '.join(inside)}")
        offset = f"(base + {s.sum_of(*terms)})[:, None] + channel[None, :]"
        x = f"tl.load(p0 + ({offset}), mask=ok[:, None] & c_ok, other={neutral})"
        if not self.k["is_mean"]:
            nan = ", propagate_nan=tl.PropagateNan.ALL" if s.dtypes[0] in FLOATS else ""
            s.line(f"acc = tl.maximum(acc, {x}{nan})")
            return
        s.line(f"acc += {x}.to(tl.float32)")
        is_counted = " & ".join(counted) if self.k["include_pad"] else "ok"
        s.line(f"count += ({is_counted}).to(tl.int32)")


class PoolFamily(CudaFamily):
    """Family of pools; a program computes a few positions with many channels of each."""

    name: ClassVar[str] = "pool"
    writer: ClassVar[type[KernelWriter]] = PoolWriter
    supports_reversed_tiles: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, MaxPool | AveragePool):
            return
        kind = required_input(node, 0).tensor.dtype
        epilogue = plan_epilogue(node, Layout.CHANNELS_LAST)
        supported = FLOATS if isinstance(root, AveragePool) else FLOATS | set(_LEAST)
        if kind not in supported:
            raise NodeRefusedError(f"{root.name} of {kind.value} is not supported")
        image = TensorFormat(kind, Layout.CHANNELS_LAST)
        inputs = (image, *epilogue.formats)
        for options, cost in pool_options(node, target):
            yield Tactic(self.name, options, inputs, (image,), estimated_seconds=cost)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = cast("MaxPool | AveragePool", root_of(node)[0])
        views = (input_view(operands, 0), operands.outputs[0])
        stages = plan_epilogue(node, Layout.CHANNELS_LAST).stages
        return (pool_launch(tactic, root, views, (extra_views(node, operands), stages)),)


def pool_options(node: Node, target: CudaTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the parameters of a pool's tactics with their estimated seconds."""
    seconds, total = memory_seconds(node, target), count_of(node.output)
    for number, (elements, num_warps) in enumerate(_SIZES):
        if number == 0 or total >= elements * target.multiprocessors:
            yield parameters(elements=elements, num_warps=num_warps), seconds * (1 - 0.01 * number)


def pool_launch(
    tactic: Tactic,
    root: MaxPool | AveragePool,
    views: tuple[View, View],
    epilogue: tuple[Sequence[tuple[View, tuple[Dim, ...]]], Json],
) -> Launch:
    """Return the launch of a pool from the first view to the second, both with channels.

    The epilogue consists of its operands, with strides along the result, and its stages.
    """
    (x, out), (extras, stages) = views, epilogue
    elements, channels = tactic.options.integer("elements"), out.shape[1]
    places = element_count((out.shape[0], *out.shape[2:]))
    channel_tile = tile_side(guessed_extent(channels), elements // 2)
    position_tile = max(1, elements // channel_tile)
    return kernel_launch(
        tactic.family,
        [x, *(view for view, _ in extras), out],
        ceil_div(places, position_tile) * ceil_div(channels, channel_tile),
        axes=axes_of(x, out, extras),
        windows=windows_of(root, x, pads_per_axis=2),
        places=places,
        tile=(position_tile, channel_tile),
        is_mean=isinstance(root, AveragePool),
        include_pad=isinstance(root, AveragePool) and root.count_include_pad,
        stages=stages,
        num_warps=tactic.options["num_warps"],
    )
