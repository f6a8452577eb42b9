"""Local response normalisation on channels-last images, across channels or within one channel.

Across channels, the energy is a banded sum: shifted, masked loads of the same pixel. Within a
channel, it is the sum over a clipped window, as in pooling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import LaunchScalars, NodeRefusedError, Operands, Tactic, root_as, root_of
from smelt.backends._node_operands import input_view
from smelt.backends.cpu._emit import Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._math import multiply_add, power
from smelt.backends.cpu.families._operand_packing import packed_tactic
from smelt.backends.cpu.families._pixel_loops import (
    PixelFamily,
    PixelKernelWriter,
    Position,
    check_float_images,
    clipped,
    pixel_launch,
    pixel_loop_of,
    pixel_strides_of,
    spatial_pair,
)
from smelt.backends.cpu.families._tiling import MEMORY_BYTES_PER_SECOND
from smelt.backends.cpu.families._vectors import load
from smelt.engine import KernelSpec, Step, parameters
from smelt.ops import LRN
from smelt.types import element_count, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node

_MAX_NEIGHBOURS: Final = 63
"""Largest number of channels of a window, whose loads are unrolled. Chosen without a
measurement."""


class LrnFamily(PixelFamily):
    """Local response normalisation: ``x / (bias + alpha / count * energy) ** beta``."""

    name: ClassVar[str] = "lrn"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, LRN):
            return
        check_float_images(node)
        if root.size > _MAX_NEIGHBOURS:
            raise NodeRefusedError(
                f"the window has {root.size} channels; at most {_MAX_NEIGHBOURS} are supported"
            )
        count = element_count(node.output.tensor.shape)
        seconds = (count if isinstance(count, int) else 1e5) * 8 / MEMORY_BYTES_PER_SECOND
        yield packed_tactic(self.name, node, parameters(lanes=target.vector_bits // 32), seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root, scalars = root_as(LRN, node), LaunchScalars()
        lanes = tactic.options.integer("lanes")
        pixels, extras = pixel_loop_of(
            node, operands, operands.packed, scalars, lanes, 2 * root.size + 20
        )
        x = input_view(operands, 0)
        kernel = kernel_spec(
            self.name,
            pixels=pixels.as_json(),
            a=pixel_strides_of(x.strides, scalars, x.dtype).as_json(),
            extents=scalars.all_json(spatial_pair(x.shape[2:], 1)),
            size=root.size,
            alpha=root.alpha,
            beta=root.beta,
            bias=root.bias,
            within=root.region == "within_channel",
        )
        views = (x, *extras, operands.outputs[0])
        return (pixel_launch(kernel, pixels, node, views, scalars),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return _Writer(kernel).write()


class _Writer(PixelKernelWriter):
    """Writes one normalisation. Operands: image, extras, result."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel, 1)
        self.before = (kernel["size"] - 1) // 2

    def write(self) -> str:
        """Write the loops over pixels, and return the module."""
        e = self.e
        with self.w.rows() as (image, row), e.loop(0, e.extent(self.p.width)) as column:
            position = (image, row, column.index)
            at = e.at(e.pointer(0), self.w.offset(self.a, *position))
            if self.k["within"]:
                self.within(position, at)
            else:
                self.across(position, at)
        return e.module()

    def normalise(
        self, position: Position, at: Reg, energy: Reg, channel: Int, mask: Reg | None
    ) -> None:
        """Write one vector: the element divided by the power of its energy."""
        e, k, kind = self.e, self.k, energy.type
        count = k["size"] ** 2 if k["within"] else k["size"]
        factor = e.constant(k["alpha"] / count, kind)
        base = multiply_add(e, energy, factor, e.constant(k["bias"], kind))
        x = load(e, kind, e.at(at, self.a.bytes_of(e, channel)), mask, self.a.dtype)
        self.w.finish(self.divided(x, base), position, channel, mask)

    def divided(self, x: Reg, base: Reg) -> Reg:
        """Return ``x / base ** beta``; the usual exponents need square roots only."""
        e, beta = self.e, self.k["beta"]
        if beta in {0.5, 0.75}:
            root = e.unary_intrinsic("sqrt", base)
            if beta == 0.75:
                root = e.binary("fmul", root, e.unary_intrinsic("sqrt", root))
            return e.binary("fdiv", x, root)
        if beta == 1.0:
            return e.binary("fdiv", x, base)
        return e.binary("fmul", x, power(e, base, e.constant(-beta, base.type)))

    # ---- across channels

    def across(self, position: Position, at: Reg) -> None:
        """Write a pixel that is normalised across channels.

        A loop handles the vectors whose neighbours all exist. The vectors at both ends have masks.
        """
        e, lanes, count = self.e, self.p.lanes, self.p.channels
        after = self.k["size"] - 1 - self.before
        first = -(-self.before // lanes) * lanes
        last = max(first, (count - after) // lanes * lanes)
        with e.loop(first, last, lanes) as loop:
            self.vector(position, at, loop.index, None)
        for channel in (*range(0, min(first, count), lanes), *range(last, count, lanes)):
            self.vector(position, at, channel, channel)

    def vector(self, position: Position, at: Reg, channel: Int, first_channel: int | None) -> None:
        """Write one vector of channels.

        ``first_channel`` is the vector's first channel if some neighbours may not exist, else None.
        """
        e, kind = self.e, self.w.kind
        energy = e.constant(0.0, kind)
        for shift in range(-self.before, self.k["size"] - self.before):
            pointer = e.at(at, self.a.bytes_of(e, e.add(channel, shift)))
            mask = None if first_channel is None else self.mask(first_channel + shift)
            x = load(e, kind, pointer, mask, self.a.dtype)
            energy = multiply_add(e, x, x, energy)
        store_mask = None if first_channel is None else self.mask(first_channel)
        self.normalise(position, at, energy, channel, store_mask)

    def mask(self, first: int) -> Reg | None:
        """Return the mask of lanes whose channel, from ``first`` on, exists; None if all do."""
        lanes = self.p.lanes
        exist = [0 <= first + lane < self.p.channels for lane in range(lanes)]
        if all(exist):
            return None
        return Reg("<" + ", ".join(f"i1 {int(x)}" for x in exist) + ">", f"<{lanes} x i1>")

    # ---- within a channel

    def within(self, position: Position, at: Reg) -> None:
        """Write a pixel that is normalised within each channel."""
        e = self.e
        bounds = [
            clipped(e, e.sub(index, self.before), self.k["size"], 1, e.extent(extent))
            for index, extent in zip(position[1:], self.k["extents"], strict=True)
        ]
        corner = self.w.offset(self.a, 0, -self.before, -self.before)
        strides = [self.a.bytes_of(e, 1, s) for s in (self.a.row, self.a.column)]

        for channel, (mask,) in self.w.channels(1):
            start = e.at(e.at(at, corner), self.a.bytes_of(e, channel))
            zero = e.constant(0.0, self.w.kind)
            with e.loop(*bounds[0], 1, [zero]) as row:
                line = e.at(start, e.mul(row.index, strides[0]))
                with e.loop(*bounds[1], 1, row.values) as column:
                    pointer = e.at(line, e.mul(column.index, strides[1]))
                    x = load(e, self.w.kind, pointer, mask, self.a.dtype)
                    column.carry = [multiply_add(e, x, x, column.values[0])]
                row.carry = column.values
            self.normalise(position, at, row.values[0], channel, mask)
