"""Depthwise convolution: each channel with its own window, on channels-last images with a halo.

A tile is some pixels of one row by one vector of channels, in registers; an element that is
loaded serves every pixel of the tile whose window it lies in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends import Family, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import view_of
from smelt.backends._scalars import Scalars
from smelt.backends.cpu._emit import Emitter
from smelt.backends.cpu._math import multiply_add
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._operands import (
    CHANNELS_LAST,
    constant_of,
    named,
    pack_bias,
    pack_extras,
    pad_after,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixels import (
    CHANNEL_AXIS,
    Pixels,
    PixelWriter,
    Walk,
    formats,
    pixel_launch,
    pixels_of,
    places,
    walk_of,
    why_no_pixels,
)
from smelt.backends.cpu.families._tiling import CYCLES_PER_SECOND, MEMORY_BYTES_PER_SECOND
from smelt.backends.cpu.families._vectors import load
from smelt.backends.cpu.families.conv import bias_of, halo_of
from smelt.engine import KernelSpec, as_json, parameters
from smelt.ops.conv import Conv
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends import Operands
    from smelt.backends.cpu._emit import Int, Reg
    from smelt.engine import Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim

_FLOAT_BYTES: Final = 4
_FIRST_LEVEL_BYTES: Final = 20 << 10
_WRITTEN_OUT_TAPS: Final = 49
"""Windows up to this size are written out; rows of larger ones are looped over."""


class DepthwiseFamily(Family[CpuTarget]):
    """One filter for each channel."""

    name: ClassVar[str] = "depthwise"
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv) or root.group == 1:
            return
        found, reason = formats(node)
        reason = _why_not(node, root) or reason
        if reason:
            yield Refusal(self.name, reason)
            return
        halo = halo_of(node, root)
        halos = (halo, *[()] * (len(node.inputs) - 1)) if halo else ()
        own = (CHANNELS_LAST, *[None] * (root_of(node)[1] - 1))
        width = node.output.tensor.shape[-1]
        sizes = (8, 14) if target.vector_bits == 512 else (4, 6)
        lanes, block = target.vector_bits // 32, _block(node, root, target)
        choices = [(_even(width, size), b) for size in sizes for b in (block, max(1, block // 2))]
        for rank, (size, vectors) in enumerate(dict.fromkeys(choices)):
            options = parameters(lanes=lanes, columns=size, block=vectors)
            seconds = _estimate_seconds(node, root, target) * (1 + 0.02 * rank)
            yield Tactic(
                self.name, options, (*own, *found), (CHANNELS_LAST,), halos, cost_hint=seconds
            )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        lanes = cast("int", dict(tactic.parameters)["lanes"])
        weights, bias = constant_of(node.inputs[1]), bias_of(node)
        channels, _, *window = (cast("int", e) for e in weights.type.shape)
        taps = 1
        for extent in window:
            taps *= extent
        turned = transpose(reshape(weights, channels, taps), 1, 0)
        packed = [named(f"{weights.name}.taps", pad_after(turned, 1, -channels % lanes, 2))]
        if bias is not None:
            packed.append(pack_bias(constant_of(bias), 1, lanes))
        return (*packed, *pack_extras(node, CHANNEL_AXIS))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = cast("Conv", root_of(node)[0])
        options, scalars = dict(tactic.parameters), Scalars()
        lanes = cast("int", options["lanes"])
        has_bias = bias_of(node) is not None
        own = 1 + has_bias
        window = _pair(root.kernel_shape)
        pixels, extras = pixels_of(
            node, operands, operands.packed[own:], scalars, lanes, window[0] * window[1]
        )
        x = view_of(operands, 0)
        row, column = places(x.strides[2:], 0)
        before = _pair(tuple(p[0] for p in root.pad_pairs), 0)
        start: Dim = row * -before[0] + column * -before[1]
        kernel = KernelSpec(
            self.name,
            parameters(
                pixels=pixels.as_json(),
                window=window,
                steps=_pair(root.strides),
                dilations=_pair(root.dilations),
                a=walk_of(x.strides, scalars, x.dtype).as_json(),
                a_start=scalars.json(start),
                bias=has_bias,
                columns=options["columns"],
                block=options["block"],
            ),
        )
        views = (x, *operands.packed[:own], *extras, operands.outputs[0])
        return (pixel_launch(kernel, pixels, node, views, scalars),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        del target
        return _write(kernel)


def _why_not(node: Node, root: Conv) -> str | None:
    reason = why_no_pixels(node)
    if reason:
        return reason
    weights, bias = node.inputs[1], bias_of(node)
    if weights is None or weights.constant is None:
        return "the weights are not constant"
    if bias is not None and bias.constant is None:
        return f"the bias {bias.name} is not constant"
    if weights.tensor.shape[1] != 1 or weights.tensor.shape[0] != root.group:
        return f"{root.group} groups of {weights.tensor}: not one filter for each channel"
    return None


def _pair(values: tuple[int, ...], missing: int = 1) -> tuple[int, int]:
    """Two dimensions of one or two."""
    return (values[0], values[1]) if len(values) == 2 else (missing, values[0])


def _even(extent: Dim, size: int) -> int:
    """Tiles of equal width overlap least."""
    if not isinstance(extent, int):
        return size
    return max(1, -(-extent // -(-extent // size)))


def _block(node: Node, root: Conv, target: CpuTarget) -> int:
    """Vectors of channels whose rows under a window stay in the first level of cache."""
    width = node.output.tensor.shape[-1]
    columns = (width if isinstance(width, int) else 56) * root.strides[-1]
    rows = _pair(root.kernel_shape)[0]
    return max(1, _FIRST_LEVEL_BYTES // (rows * columns * target.vector_bits // 8))


def _estimate_seconds(node: Node, root: Conv, target: CpuTarget) -> float:
    shape = [e if isinstance(e, int) else 14 for e in node.output.tensor.shape]
    elements = 1
    for extent in shape:
        elements *= extent
    taps = 1
    for extent in root.kernel_shape:
        taps *= extent
    cycles = elements / (target.vector_bits // 32) * taps * 0.75
    return cycles / CYCLES_PER_SECOND + elements * 8 / MEMORY_BYTES_PER_SECOND


def _write(kernel: KernelSpec) -> str:
    """One kernel. Operands: image, taps, bias if any, extras, result."""
    pixels, first = Pixels.from_spec(kernel), 2 + kernel["bias"]
    e = Emitter(kernel.symbol, first + len(pixels.extras) + 1)
    w = PixelWriter(e, pixels, first)
    a = Walk(*as_json(kernel["a"]))  # type: ignore[misc]
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
    """Writes rows of results; a kernel gives ``window``, ``steps``, ``dilations``, ``columns``."""

    def __init__(
        self, w: PixelWriter, kernel: KernelSpec, a: Walk, operands: tuple[Reg, Reg, Reg | None]
    ) -> None:
        """A writer for images that ``a`` walks; ``operands``: first tap's image, taps, bias."""
        self.w, self.e, self.k, self.a = w, w.e, kernel, a
        self.image, self.taps, self.bias = operands
        self.padded = -(-w.p.channels // w.p.lanes) * w.p.lanes

    def row(self, line: tuple[Int, Int], channels: tuple[Int, Int], mask: Reg | None) -> None:
        """Write one row of one image, ``line``, for some channels: whole vectors, or one masked."""
        e, columns = self.e, self.k["columns"]
        width = e.extent(self.w.p.width)
        if isinstance(width, int):
            self.tiles(line, channels, mask, min(columns, width))
            return
        with e.when(e.compare("sge", width, columns)):
            self.tiles(line, channels, mask, columns)
        with e.when(e.compare("slt", width, columns)):
            self.tiles(line, channels, mask, 1)

    def tiles(
        self, line: tuple[Int, Int], channels: tuple[Int, Int], mask: Reg | None, columns: int
    ) -> None:
        """Tiles of one row; the last ends at the border."""
        e, width = self.e, self.e.extent(self.w.p.width)
        count = e.div(e.add(width, columns - 1), columns)
        with e.loop(0, count) as tile:
            left = e.minimum(e.mul(tile.index, columns), e.sub(width, columns))
            with e.loop(*channels, self.w.p.lanes) as channel:
                self.tile((*line, left), columns, channel.index, mask)

    def tile(
        self, place: tuple[Int, Int, Int], columns: int, channel: Int, mask: Reg | None
    ) -> None:
        """Write some pixels of a row, one vector of channels."""
        e, (image, row, left) = self.e, place
        steps = as_json(self.k["steps"])
        down, across = e.mul(row, steps[0]), e.mul(left, steps[1])  # type: ignore[index, arg-type]
        at = e.at(self.image, self.w.offset(self.a, image, down, across))
        lane = e.mul(channel, _FLOAT_BYTES)
        sums = [e.constant(0.0, self.w.kind)] * columns
        if self.bias is not None:
            sums = [e.load(self.w.kind, e.at(self.bias, lane))] * columns
        at = e.at(at, self.a.bytes_of(e, channel))
        sums = self.sum_window(at, e.at(self.taps, lane), sums, mask)
        for i, value in enumerate(sums):
            self.w.finish(value, (image, row, e.add(left, i)), channel, mask)

    def sum_window(self, a: Reg, taps: Reg, sums: list[Reg], mask: Reg | None) -> list[Reg]:
        """Add the whole window to the sums."""
        height, width = self.k["window"]
        if height * width <= _WRITTEN_OUT_TAPS:
            for row in range(height):
                sums = self.sum_row(a, taps, row, sums, mask)
            return sums
        with self.e.loop(0, height, carried=sums) as loop:
            loop.carry = self.sum_row(a, taps, loop.index, list(loop.values), mask)
        return list(loop.values)

    def sum_row(self, a: Reg, taps: Reg, row: Int, sums: list[Reg], mask: Reg | None) -> list[Reg]:
        """Add one row of the window to the sums; each element is loaded once."""
        e, width, sums = self.e, self.k["window"][1], list(sums)
        step, dilation = self.k["steps"][1], self.k["dilations"]
        line = self.a.bytes_of(e, e.mul(row, dilation[0]), self.a.row)
        at = e.at(a, line)
        first = e.mul(row, width * self.padded * _FLOAT_BYTES)
        factors = [
            e.load(self.w.kind, e.at(taps, e.add(first, t * self.padded * _FLOAT_BYTES)))
            for t in range(width)
        ]
        users: dict[int, list[tuple[int, int]]] = {}
        for i in range(len(sums)):
            for t in range(width):
                users.setdefault(i * step + t * dilation[1], []).append((i, t))
        for place in sorted(users):
            here = e.at(at, self.a.bytes_of(e, place, self.a.column))
            element = load(e, self.w.kind, here, mask, self.a.dtype)
            for i, t in users[place]:
                sums[i] = multiply_add(e, element, factors[t], sums[i])
        return sums
