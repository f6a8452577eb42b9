"""Depthwise convolution: one window per channel, on channels-last images with a halo.

A tile is some pixels of one row by one vector of channels, in registers. An element that is loaded
serves every pixel of the tile whose window contains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import (
    Family,
    LaunchScalars,
    NodeRefusedError,
    Operands,
    Tactic,
    root_as,
    root_of,
)
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._emit import FLOAT_BYTES, Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._math import multiply_add
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._operand_packing import (
    constant_of,
    named,
    pack_bias,
    pack_epilogue_constants,
    packed_tactic,
    pad_after,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixel_loops import (
    CHANNEL_AXIS,
    PixelKernelWriter,
    PixelLoopWriter,
    PixelStrides,
    Position,
    check_float_images,
    pixel_launch,
    pixel_loop_of,
    pixel_strides_of,
    spatial_pair,
)
from smelt.backends.cpu.families._tiling import (
    CYCLES_PER_SECOND,
    MEMORY_BYTES_PER_SECOND,
    even_size,
)
from smelt.backends.cpu.families._vectors import load
from smelt.backends.cpu.families.conv import bias_of, check_constant_weights, halo_of
from smelt.engine import Json, KernelSpec, Launch, Step, parameters
from smelt.ops import Conv, ConvInteger
from smelt.types import Dim, fixed_shape, override

if TYPE_CHECKING:
    from smelt.ir import Constant, Node

_L1_BYTES: Final = 20 << 10
"""Bytes of the L1 data cache that a block of input rows may occupy. Chosen without a
measurement."""
_MAX_UNROLLED_TAPS: Final = 49
"""Largest number of taps of a window that is unrolled; larger windows loop over rows. 49 are the
taps of a 7x7 window; chosen without a measurement."""


class DepthwiseFamily(Family[CpuTarget]):
    """Convolution with one filter per channel."""

    name: ClassVar[str] = "depthwise"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or root.group == 1:
            return
        check_float_images(node)
        check_constant_weights(node)
        check_depthwise(node, root)
        halo = halo_of(node, root)
        width = node.output.tensor.shape[-1]
        sizes = (8, 14) if target.vector_bits == 512 else (4, 6)
        lanes, block = target.vector_bits // 32, _block(node, root, target)
        choices = [
            (even_width(width, size), b) for size in sizes for b in (block, max(1, block // 2))
        ]
        for rank, (size, vectors) in enumerate(dict.fromkeys(choices)):
            options = parameters(lanes=lanes, columns=size, block=vectors)
            seconds = _estimate_seconds(node, root, target) * (1 + 0.02 * rank)
            yield packed_tactic(self.name, node, options, seconds, halo=halo)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        lanes = tactic.options.integer("lanes")
        weights, bias = constant_of(node.inputs[1]), bias_of(node)
        channels, _, *window = fixed_shape(weights.type.shape)
        permuted = transpose(reshape(weights, channels, math.prod(window)), 1, 0)
        packed = [named(f"{weights.name}.taps", pad_after(permuted, 1, -channels % lanes, 2))]
        if bias is not None:
            packed.append(pack_bias(constant_of(bias), 1, lanes))
        return (*packed, *pack_epilogue_constants(node, CHANNEL_AXIS))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root, block = root_as(Conv, node), tactic.options["block"]
        has_bias = bias_of(node) is not None
        return (
            depthwise_launch(
                node, root, tactic, operands, 1 + has_bias, bias=has_bias, block=block
            ),
        )

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return _write(kernel)


def depthwise_launch(
    node: Node,
    root: Conv | ConvInteger,
    tactic: Tactic,
    operands: Operands,
    num_root_operands: int,
    /,
    **own: Json,
) -> Launch:
    """Return the launch of a depthwise kernel.

    The kernel reads the image, the first ``num_root_operands`` packed operands, which are the
    root's, and the epilogue's operands. ``own`` are the parameters that only this family has.
    """
    options, scalars = tactic.options, LaunchScalars()
    window = spatial_pair(root.kernel_shape, 1)
    lanes, constants = options.integer("lanes"), operands.packed[num_root_operands:]
    work = window[0] * window[1]
    pixels, extras = pixel_loop_of(node, operands, constants, scalars, lanes, work)
    x = input_view(operands, 0)
    row, column = spatial_pair(x.strides[2:], 0)
    before = spatial_pair([p[0] for p in root.pad_pairs], 0)
    start: Dim = row * -before[0] + column * -before[1]
    kernel = kernel_spec(
        tactic.family,
        pixels=pixels.as_json(),
        window=window,
        steps=spatial_pair(root.strides, 1),
        dilations=spatial_pair(root.dilations, 1),
        a=pixel_strides_of(x.strides, scalars, x.dtype).as_json(),
        a_start=scalars.json(start),
        columns=options["columns"],
        **own,
    )
    views = (x, *operands.packed[:num_root_operands], *extras, operands.outputs[0])
    return pixel_launch(kernel, pixels, node, views, scalars)


def check_depthwise(node: Node, root: Conv | ConvInteger) -> None:
    """Check that a grouped convolution has one filter per channel."""
    weights = required_input(node, 1).tensor
    if weights.shape[1] != 1 or weights.shape[0] != root.group:
        raise NodeRefusedError(
            "the convolution is not depthwise (one filter per channel): group is "
            f"{root.group}, and the weights are {weights}"
        )


def even_width(extent: Dim, size: int) -> int:
    """Return the width up to ``size`` of equal tiles that cover ``extent`` with least overlap."""
    return even_size(extent, size) if isinstance(extent, int) else size


def _block(node: Node, root: Conv, target: CpuTarget) -> int:
    """Return the vectors of channels whose input rows under a window stay in L1."""
    width = node.output.tensor.shape[-1]
    columns = (width if isinstance(width, int) else 56) * root.strides[-1]
    rows = spatial_pair(root.kernel_shape, 1)[0]
    return max(1, _L1_BYTES // (rows * columns * target.vector_bits // 8))


def _estimate_seconds(node: Node, root: Conv, target: CpuTarget) -> float:
    """Return the estimated seconds: 0.75 cycles per vector and tap, and the memory traffic.

    Unknown extents count as 14.
    """
    shape = [e if isinstance(e, int) else 14 for e in node.output.tensor.shape]
    elements = math.prod(shape)
    cycles = elements / (target.vector_bits // 32) * math.prod(root.kernel_shape) * 0.75
    return cycles / CYCLES_PER_SECOND + elements * 8 / MEMORY_BYTES_PER_SECOND


def _write(kernel: KernelSpec) -> str:
    """Return the LLVM IR of a kernel. Operands: image, taps, bias (if any), extras, result."""
    writer = PixelKernelWriter(kernel, 2 + kernel["bias"])
    e, w, a = writer.e, writer.w, writer.a
    image = e.at(e.pointer(0), a.bytes_of(e, 1, kernel["a_start"]))
    bias = e.pointer(2) if kernel["bias"] else None
    rows = RowWriter(w, kernel, a, (image, e.pointer(1), bias))
    with w.chunks() as (number, top, bottom):

        def block(first: Int, end: Int, mask: Reg | None) -> None:
            with e.loop(top, bottom) as row:
                rows.row((number, row.index), (first, end), mask)

        w.channel_blocks(kernel["block"], block)
    return e.module()


class RowWriter:
    """Writes rows of results of a depthwise convolution.

    The kernel's spec gives ``window``, ``steps``, ``dilations`` and ``columns``.
    """

    def __init__(
        self,
        w: PixelLoopWriter,
        kernel: KernelSpec,
        a: PixelStrides,
        operands: tuple[Reg, Reg, Reg | None],
    ) -> None:
        """Create a writer for images with the strides ``a``.

        ``operands`` are the addresses of the first tap's pixel, the taps and the bias.
        """
        self.w, self.e, self.k, self.a = w, w.e, kernel, a
        self.image, self.taps, self.bias = operands
        self.padded = -(-w.p.channels // w.p.lanes) * w.p.lanes

    def row(self, line: tuple[Int, Int], channels: tuple[Int, Int], mask: Reg | None) -> None:
        """Write one row of results, ``line``, for a range of channels.

        The channels are full vectors, or one vector with a mask.
        """

        def tile(left: Int, columns: int) -> None:
            with self.e.loop(*channels, self.w.p.lanes) as channel:
                self.tile((*line, left), columns, channel.index, mask)

        self.w.row_tiles(self.k["columns"], tile)

    def tile(self, position: Position, columns: int, channel: Int, mask: Reg | None) -> None:
        """Write some pixels of a row for one vector of channels."""
        e, (image, row, left) = self.e, position
        steps = self.k["steps"]
        down, across = e.mul(row, steps[0]), e.mul(left, steps[1])
        at = e.at(self.image, self.w.offset(self.a, image, down, across))
        lane = e.mul(channel, FLOAT_BYTES)
        sums = [e.constant(0.0, self.w.kind)] * columns
        if self.bias is not None:
            sums = [e.load(self.w.kind, e.at(self.bias, lane))] * columns
        at = e.at(at, self.a.bytes_of(e, channel))
        sums = self.sum_window(at, e.at(self.taps, lane), sums, mask)
        for i, value in enumerate(sums):
            self.w.finish(value, (image, row, e.add(left, i)), channel, mask)

    def sum_window(self, a: Reg, taps: Reg, sums: list[Reg], mask: Reg | None) -> list[Reg]:
        """Return the sums with the products of the whole window added."""
        height, width = self.k["window"]
        if height * width <= _MAX_UNROLLED_TAPS:
            for row in range(height):
                sums = self.sum_row(a, taps, row, sums, mask)
            return sums
        with self.e.loop(0, height, carried=sums) as loop:
            loop.carry = self.sum_row(a, taps, loop.index, list(loop.values), mask)
        return list(loop.values)

    def sum_row(self, a: Reg, taps: Reg, row: Int, sums: list[Reg], mask: Reg | None) -> list[Reg]:
        """Return the sums with the products of one row of the window added.

        Each input element is loaded once and serves all pixels of the tile that use it.
        """
        e, width, sums = self.e, self.k["window"][1], list(sums)
        step, dilation = self.k["steps"][1], self.k["dilations"]
        line = self.a.bytes_of(e, e.mul(row, dilation[0]), self.a.row)
        at = e.at(a, line)
        first = e.mul(row, width * self.padded * FLOAT_BYTES)
        factors = [
            e.load(self.w.kind, e.at(taps, e.add(first, t * self.padded * FLOAT_BYTES)))
            for t in range(width)
        ]
        users: dict[int, list[tuple[int, int]]] = {}
        for i in range(len(sums)):
            for t in range(width):
                users.setdefault(i * step + t * dilation[1], []).append((i, t))
        for position in sorted(users):
            pointer = e.at(at, self.a.bytes_of(e, position, self.a.column))
            element = load(e, self.w.kind, pointer, mask, self.a.dtype)
            for i, t in users[position]:
                sums[i] = multiply_add(e, element, factors[t], sums[i])
        return sums
