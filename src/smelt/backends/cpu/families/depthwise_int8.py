"""Depthwise convolution of bytes that multiplies up to four rows of a window at a time.

The dot product of groups of four bytes needs the bytes of a group side by side, but the elements of
a depthwise window are in different pixels. The kernel therefore interleaves four vertically
adjacent pixels byte by byte; the interleaved vector serves every window that contains the column. A
*block* of channels is one register of bytes and four registers of accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends import Family, NodeRefusedError, Operands, Tactic, root_as, root_of
from smelt.backends.cpu._emit import Int, Reg, vector_type
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, int8_dot_product
from smelt.backends.cpu.families._operand_packing import (
    constant_of,
    named,
    pack_bias,
    pack_epilogue_constants,
    pad_after,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixel_loops import (
    CHANNEL_AXIS,
    PixelKernelWriter,
    Position,
    check_images,
    spatial_pair,
)
from smelt.backends.cpu.families._tiling import CYCLES_PER_SECOND
from smelt.backends.cpu.families._vectors import load
from smelt.backends.cpu.families.depthwise import check_depthwise, depthwise_launch, even_width
from smelt.backends.cpu.families.int8_product import (
    check_int8_product,
    int8_tactic,
    zero_point_bias,
)
from smelt.engine import KernelSpec, Step, as_json, parameters
from smelt.ops import ConvInteger
from smelt.types import DType, element_count, fixed_shape, override

if TYPE_CHECKING:
    from smelt.ir import Constant, Node

_GROUP: Final = 4
"""Number of bytes that a lane multiplies and sums at a time."""
_MAX_UNROLLED_TAPS: Final = 49
"""Largest number of taps of a window; windows are always unrolled. 49 are the taps of a 7x7 window;
chosen without a measurement."""
_SUM_BYTES: Final = 4
"""Size in bytes of an accumulator."""
_SIGN: Final = -128
"""Sign bit of a byte: flipping it adds 128, which makes signed bytes unsigned."""


class DepthwiseInt8Family(Family[CpuTarget]):
    """Convolution of bytes with one filter per channel."""

    name: ClassVar[str] = "depthwise_int8"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, ConvInteger) or root.group == 1:
            return
        check_int8_product(node)
        check_images(node)
        check_depthwise(node, root)
        _check_window(root)
        width, count = node.output.tensor.shape[-1], element_count(node.output.tensor.shape)
        work = (count if isinstance(count, int) else 1 << 16) / target.vector_bits
        lanes, dot_product = target.vector_bits // 32, int8_dot_product(target).name
        sizes = dict.fromkeys(even_width(width, maximum) for maximum in (8, 14, 4))
        for rank, size in enumerate(sizes):
            options = parameters(lanes=lanes, columns=size, dot_product=dot_product)
            seconds = 300 * work / CYCLES_PER_SECOND * (1 + 0.02 * rank)
            yield int8_tactic(self.name, node, options, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        lanes = tactic.options.integer("lanes")
        taps = _pack_taps(constant_of(node.inputs[1]), lanes)
        bias = pack_bias(zero_point_bias(node), 1, lanes)
        return (taps, bias, *pack_epilogue_constants(node, CHANNEL_AXIS))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root, dot_product = root_as(ConvInteger, node), tactic.options["dot_product"]
        return (depthwise_launch(node, root, tactic, operands, 2, dot_product=dot_product),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return _Writer(kernel).write()


def _check_window(root: ConvInteger) -> None:
    """Check that the family supports a window."""
    if prod(root.kernel_shape) > _MAX_UNROLLED_TAPS:
        raise NodeRefusedError(
            f"the window is {root.kernel_shape}; at most {_MAX_UNROLLED_TAPS} elements are "
            "supported"
        )


def _pack_taps(weights: Constant, lanes: int) -> Constant:
    """Return the weights as the kernel reads them, padded with zeros.

    The layout is ``[vector of channels][group of rows][column][channel][row of the group]``.
    """
    channels, _, *window = fixed_shape(weights.type.shape)
    rows, columns = spatial_pair(tuple(window), 1)
    shaped = reshape(weights, channels, rows, columns)
    padded = pad_after(pad_after(shaped, 0, -channels % lanes, 3), 1, -rows % _GROUP, 3)
    parted = reshape(padded, -(-channels // lanes), lanes, -(-rows // _GROUP), _GROUP, columns)
    return named(f"{weights.name}.taps", transpose(parted, 0, 2, 4, 1, 3))


class _Writer(PixelKernelWriter):
    """Writes one convolution. Operands: image, taps, initial sums, extras, result."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel, 3)
        self.dot_product = DOT_PRODUCTS[kernel["dot_product"]]
        self.window = cast("tuple[int, int]", as_json(kernel["window"]))
        self.steps = cast("tuple[int, int]", as_json(kernel["steps"]))
        self.dilations = cast("tuple[int, int]", as_json(kernel["dilations"]))
        self.bytes = self.p.lanes * _GROUP
        self.row_groups = -(-self.window[0] // _GROUP)

    def write(self) -> str:
        """Write the loops over rows and blocks of channels, and return the module."""
        e, p = self.e, self.p
        with self.w.chunks() as (image, top, bottom), e.loop(top, bottom) as row:
            for channel, count in e.blocks(p.channels, self.bytes):
                self.row((image, row.index), channel, count)
        return e.module()

    def row(self, line: tuple[Int, Int], channel: Int, count: int) -> None:
        """Write all pixels of a row for ``count`` channels from ``channel`` on."""
        self.w.row_tiles(
            self.k["columns"],
            lambda left, columns: self.tile((*line, left), channel, count, columns),
        )

    def tile(self, position: Position, channel: Int, count: int, columns: int) -> None:
        """Write adjacent pixels of a row for a block of channels.

        A pixel is finished as soon as its last column is done, so that its accumulators become
        free.
        """
        e, (image, row, left) = self.e, position
        at = e.at(e.pointer(0), self.a.bytes_of(e, 1, self.k["a_start"]))
        down, across = e.mul(row, self.steps[0]), e.mul(left, self.steps[1])
        at = e.at(at, self.w.offset(self.a, image, down, across))
        at = e.at(at, self.a.bytes_of(e, channel))
        vectors = -(-count // self.p.lanes)
        users: dict[int, list[tuple[int, int]]] = {}
        for i in range(columns):
            for t in range(self.window[1]):
                users.setdefault(i * self.steps[1] + t * self.dilations[1], []).append((i, t))
        sums: dict[int, list[Reg]] = {}
        for column in sorted(users):
            pointer = e.at(at, self.a.bytes_of(e, column, self.a.column))
            for group in range(self.row_groups):
                interleaved_rows = self.interleave_rows(pointer, group, count)
                for i, t in users[column]:
                    before = sums[i] if i in sums else self.first(channel, vectors)
                    sums[i] = [
                        self.dot_product.add_products(
                            e, interleaved_rows[q], self.factor(channel, q, group, t), total
                        )
                        for q, total in enumerate(before)
                    ]
            for i, t in users[column]:
                if t == self.window[1] - 1:
                    self.finish((image, row, e.add(left, i)), channel, count, sums.pop(i))

    def first(self, channel: Int, vectors: int) -> list[Reg]:
        """Return the initial sums of the vectors of a block."""
        e = self.e
        at = e.at(e.pointer(2), e.mul(channel, _SUM_BYTES))
        kind = self.dot_product.sums_type(self.p.lanes)
        size = self.p.lanes * _SUM_BYTES
        return [e.load(kind, e.at(at, q * size)) for q in range(vectors)]

    def factor(self, channel: Int, vector: int, group: int, column: int) -> Reg:
        """Return the weights of a vector of channels for one column of a group of rows."""
        e, columns = self.e, self.window[1]
        size = self.row_groups * columns * _GROUP
        within = vector * self.p.lanes * size + (group * columns + column) * self.bytes
        at = e.at(e.pointer(1), e.add(e.mul(channel, size), within))
        return e.load(self.dot_product.factor_type(self.p.lanes), at)

    def finish(self, position: Position, channel: Int, count: int, sums: list[Reg]) -> None:
        """Write the epilogue and the stores of one pixel."""
        for q, (total, mask) in enumerate(zip(sums, self.w.masks(count), strict=True)):
            self.w.finish(total, position, self.e.add(channel, q * self.p.lanes), mask)

    # ---- interleaving

    def interleave_rows(self, at: Reg, group: int, count: int) -> list[Reg]:
        """Return, for each vector of channels, the bytes of a group of rows side by side."""
        rows = range(group * _GROUP, min((group + 1) * _GROUP, self.window[0]))
        loaded = [self.pixel(at, row, count) for row in rows]
        # The weights of missing rows are zero, so their pixels may have any value.
        nothing = self.e.constant(0, vector_type("i8", self.bytes))
        loaded += [nothing] * (_GROUP - len(loaded))
        vectors = -(-count // self.p.lanes)
        first = self.pairs(loaded[0], loaded[1], vectors)
        second = self.pairs(loaded[2], loaded[3], vectors)
        return [self.quads(first[q // 2], second[q // 2], q % 2) for q in range(vectors)]

    def pixel(self, at: Reg, row: int, count: int) -> Reg:
        """Return the bytes of one pixel as unsigned bytes, ordered for interleaving (`spread`)."""
        e = self.e
        pointer = e.at(at, self.a.bytes_of(e, row * self.dilations[0], self.a.row))
        kind = vector_type("i8", self.bytes)
        mask = None if count >= self.bytes else e.tail_mask(count, self.bytes)
        value = load(e, kind, pointer, mask, self.a.dtype)
        if self.a.dtype is DType.INT8:
            value = e.binary("xor", value, e.constant(_SIGN, kind))
        return e.shuffle(value, value, self.spread())

    def spread(self) -> list[int]:
        """Return the order that puts four channels of each vector into each 16-byte part.

        The x86 byte interleaving instructions work within parts of 16 bytes. With this order the
        interleaved bytes of each vector of channels end up in the lanes of its accumulators.
        """
        parts = self.bytes // 16
        order: list[int] = []
        for part in range(parts):
            for vector in range(_GROUP):
                first = vector * self.p.lanes + part * 4
                order += range(first, first + 4)
        return order

    def pairs(self, a: Reg, b: Reg, vectors: int) -> list[Reg]:
        """Return two pixels interleaved byte by byte.

        The first result has the lower halves of all 16-byte parts, the second their upper halves.
        """
        interleaved: list[Reg] = []
        for half in range(-(-vectors // 2)):
            order: list[int] = []
            for part in range(0, self.bytes, 16):
                for k in range(part + 8 * half, part + 8 * half + 8):
                    order += (k, self.bytes + k)
            interleaved.append(self.e.shuffle(a, b, order))
        return interleaved

    def quads(self, a: Reg, b: Reg, half: int) -> Reg:
        """Return two interleaved pairs of pixels, interleaved again two bytes at a time."""
        order: list[int] = []
        for part in range(0, self.bytes, 16):
            for k in range(part + 8 * half, part + 8 * half + 8, 2):
                order += (k, k + 1, self.bytes + k, self.bytes + k + 1)
        return self.e.shuffle(a, b, order)
