"""Depthwise convolution of bytes: up to four rows of a window are multiplied at a time.

The instruction that multiplies groups of four bytes wants the bytes of a group side by side, and
a depthwise window has its elements in different pixels. So four pixels of a column, one below the
other, are woven together byte by byte: the weave serves every window that the column lies in.
A *block* of channels is a register of bytes, and four registers of sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends import Family, Refusal
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view
from smelt.backends.cpu._emit import Emitter, Int, Reg, vector_type
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
    PixelLoopSpec,
    PixelLoopWriter,
    PixelStrides,
    formats,
    pixel_launch,
    pixel_loop_of,
    pixel_strides_of,
    spatial_pair,
    unsupported_image_reason,
)
from smelt.backends.cpu.families._tiling import CYCLES_PER_SECOND
from smelt.backends.cpu.families.int8_product import (
    int8_tactic,
    unsupported_int8_product_reason,
    zero_point_bias,
)
from smelt.engine import KernelSpec, as_json, parameters
from smelt.ops.conv_integer import ConvInteger
from smelt.types import DType, element_count, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends import Operands, Tactic
    from smelt.engine import Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim

_GROUP: Final = 4
"""Bytes that are multiplied and summed at a time."""
_MAX_UNROLLED_TAPS: Final = 49
"""Windows up to this size are written out."""
_SUM_BYTES: Final = 4
_SIGN: Final = -128


class DepthwiseInt8Family(Family[CpuTarget]):
    """One filter of bytes for each channel."""

    name: ClassVar[str] = "depthwise_int8"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, ConvInteger) or root.group == 1:
            return
        found, reason = formats(node)
        reason = (
            unsupported_int8_product_reason(node)
            or unsupported_image_reason(node)
            or _unsupported_reason(node, root)
            or reason
        )
        if reason:
            yield Refusal(self.name, reason)
            return
        width, count = node.output.tensor.shape[-1], element_count(node.output.tensor.shape)
        work = (count if isinstance(count, int) else 1 << 16) / target.vector_bits
        for rank, size in enumerate(dict.fromkeys(_even(width, most) for most in (8, 14, 4))):
            options = parameters(
                lanes=target.vector_bits // 32,
                columns=size,
                dot_product=int8_dot_product(target).name,
            )
            seconds = 300 * work / CYCLES_PER_SECOND * (1 + 0.02 * rank)
            yield int8_tactic(self.name, node, options, found, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        lanes = tactic.options.integer("lanes")
        taps = _pack_taps(constant_of(node.inputs[1]), lanes)
        return (
            taps,
            pack_bias(zero_point_bias(node), 1, lanes),
            *pack_epilogue_constants(node, CHANNEL_AXIS),
        )

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(ConvInteger, node)
        options, scalars = tactic.options, LaunchScalars()
        lanes = options.integer("lanes")
        window = _pair(root.kernel_shape)
        pixels, extras = pixel_loop_of(
            node, operands, operands.packed[2:], scalars, lanes, window[0] * window[1]
        )
        x = input_view(operands, 0)
        row, column = spatial_pair(x.strides[2:], 0)
        before = _pair(tuple(p[0] for p in root.pad_pairs), 0)
        start: Dim = row * -before[0] + column * -before[1]
        kernel = KernelSpec(
            self.name,
            parameters(
                pixels=pixels.as_json(),
                window=window,
                steps=_pair(root.strides),
                dilations=_pair(root.dilations),
                a=pixel_strides_of(x.strides, scalars, x.dtype).as_json(),
                a_start=scalars.json(start),
                columns=options["columns"],
                dot_product=options["dot_product"],
            ),
        )
        views = (x, *operands.packed[:2], *extras, operands.outputs[0])
        return (pixel_launch(kernel, pixels, node, views, scalars),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        del target
        return _Writer(kernel).write()


def _unsupported_reason(node: Node, root: ConvInteger) -> str | None:
    weights = constant_of(node.inputs[1]).type
    if weights.shape[1] != 1 or weights.shape[0] != root.group:
        return f"{root.group} groups of {weights}: not depthwise (one filter per channel)"
    if element_count(root.kernel_shape) > _MAX_UNROLLED_TAPS:  # type: ignore[operator]
        return f"a window of {root.kernel_shape} has more than {_MAX_UNROLLED_TAPS} elements"
    return None


def _pair(values: tuple[int, ...], missing: int = 1) -> tuple[int, int]:
    """Two dimensions of one or two."""
    return (values[0], values[1]) if len(values) == 2 else (missing, values[0])


def _even(extent: Dim, size: int) -> int:
    """Tiles of equal width overlap least."""
    if not isinstance(extent, int):
        return size
    return max(1, -(-extent // -(-extent // size)))


def _pack_taps(weights: Constant, lanes: int) -> Constant:
    """``[vector of channels][group of rows][column][channel][row of the group]``."""
    channels, _, *window = fixed_shape(weights.type.shape)
    rows, columns = _pair(tuple(window))
    shaped = reshape(weights, channels, rows, columns)
    padded = pad_after(pad_after(shaped, 0, -channels % lanes, 3), 1, -rows % _GROUP, 3)
    parted = reshape(padded, -(-channels // lanes), lanes, -(-rows // _GROUP), _GROUP, columns)
    return named(f"{weights.name}.taps", transpose(parted, 0, 2, 4, 1, 3))


class _Writer:
    """Writes one kernel. Operands: image, taps, first sums, extras, result."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.p = PixelLoopSpec.from_spec(kernel)
        self.dot_product = DOT_PRODUCTS[kernel["dot_product"]]
        self.e = Emitter(kernel.symbol, 3 + len(self.p.extras) + 1)
        self.w = PixelLoopWriter(self.e, self.p, 3)
        self.a = PixelStrides(*as_json(kernel["a"]))  # type: ignore[misc]
        self.window = cast("tuple[int, int]", as_json(kernel["window"]))
        self.steps = cast("tuple[int, int]", as_json(kernel["steps"]))
        self.dilations = cast("tuple[int, int]", as_json(kernel["dilations"]))
        self.bytes = self.p.lanes * _GROUP
        self.row_groups = -(-self.window[0] // _GROUP)

    def write(self) -> str:
        e, p = self.e, self.p
        whole = p.channels // self.bytes * self.bytes
        with self.w.chunks() as (image, top, bottom), e.loop(top, bottom) as row:
            if whole:
                with e.loop(0, whole, self.bytes) as block:
                    self.row((image, row.index), block.index, self.bytes)
            if p.channels > whole:
                self.row((image, row.index), whole, p.channels - whole)
        return e.module()

    def row(self, line: tuple[Int, Int], channel: Int, count: int) -> None:
        """All pixels of a row, for ``count`` channels from ``channel`` on."""
        e, columns = self.e, self.k["columns"]
        width = e.extent(self.p.width)
        if isinstance(width, int):
            self.tiles(line, channel, count, min(columns, width))
            return
        with e.when(e.compare("sge", width, columns)):
            self.tiles(line, channel, count, columns)
        with e.when(e.compare("slt", width, columns)):
            self.tiles(line, channel, count, 1)

    def tiles(self, line: tuple[Int, Int], channel: Int, count: int, columns: int) -> None:
        """Tiles of one row; the last ends at the border."""
        e, width = self.e, self.e.extent(self.p.width)
        with e.loop(0, e.div(e.add(width, columns - 1), columns)) as tile:
            left = e.minimum(e.mul(tile.index, columns), e.sub(width, columns))
            self.tile((*line, left), channel, count, columns)

    def tile(self, position: tuple[Int, Int, Int], channel: Int, count: int, columns: int) -> None:
        """Pixels side by side; each is finished as soon as its last column is done."""
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
            here = e.at(at, self.a.bytes_of(e, column, self.a.column))
            for group in range(self.row_groups):
                interleaved_rows = self.interleave_rows(here, group, count)
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
        e = self.e
        at = e.at(e.pointer(2), e.mul(channel, _SUM_BYTES))
        kind = self.dot_product.sums_type(self.p.lanes)
        size = self.p.lanes * _SUM_BYTES
        return [e.load(kind, e.at(at, q * size)) for q in range(vectors)]

    def factor(self, channel: Int, vector: int, group: int, column: int) -> Reg:
        """The weights of a vector of channels, for one column of a group of rows."""
        e, columns = self.e, self.window[1]
        size = self.row_groups * columns * _GROUP
        within = vector * self.p.lanes * size + (group * columns + column) * self.bytes
        at = e.at(e.pointer(1), e.add(e.mul(channel, size), within))
        return e.load(self.dot_product.factor_type(self.p.lanes), at)

    def finish(
        self, position: tuple[Int, Int, Int], channel: Int, count: int, sums: list[Reg]
    ) -> None:
        lanes = self.p.lanes
        for q, total in enumerate(sums):
            left = count - q * lanes
            mask = None if left >= lanes else self.e.tail_mask(left, lanes)
            self.w.finish(total, position, self.e.add(channel, q * lanes), mask)

    # ---- weaving

    def interleave_rows(self, at: Reg, group: int, count: int) -> list[Reg]:
        """For each vector of channels, the bytes of a group of rows side by side."""
        rows = range(group * _GROUP, min((group + 1) * _GROUP, self.window[0]))
        loaded = [self.pixel(at, row, count) for row in rows]
        # Of rows that are missing the weights are zero.
        nothing = self.e.constant(0, vector_type("i8", self.bytes))
        loaded += [nothing] * (_GROUP - len(loaded))
        vectors = -(-count // self.p.lanes)
        first = self.pairs(loaded[0], loaded[1], vectors)
        second = self.pairs(loaded[2], loaded[3], vectors)
        return [self.quads(first[q // 2], second[q // 2], q % 2) for q in range(vectors)]

    def pixel(self, at: Reg, row: int, count: int) -> Reg:
        """The bytes of one pixel, moved between the parts of a register as weaving wants them."""
        e = self.e
        here = e.at(at, self.a.bytes_of(e, row * self.dilations[0], self.a.row))
        kind = vector_type("i8", self.bytes)
        if count >= self.bytes:
            found = e.load(kind, here)
        else:
            found = e.load_masked(kind, here, e.tail_mask(count, self.bytes))
        if self.a.dtype is DType.INT8:
            found = e.binary("xor", found, e.constant(_SIGN, kind))
        return self.shuffle(found, found, self.spread())

    def spread(self) -> list[int]:
        """Four channels of each vector to each part of 16 bytes, in which instructions weave."""
        parts = self.bytes // 16
        order: list[int] = []
        for part in range(parts):
            for vector in range(_GROUP):
                first = vector * self.p.lanes + part * 4
                order += range(first, first + 4)
        return order

    def pairs(self, a: Reg, b: Reg, vectors: int) -> list[Reg]:
        """Two pixels woven: of each part of 16 bytes the lower half, then the upper."""
        made: list[Reg] = []
        for half in range(-(-vectors // 2)):
            order: list[int] = []
            for part in range(0, self.bytes, 16):
                for k in range(part + 8 * half, part + 8 * half + 8):
                    order += (k, self.bytes + k)
            made.append(self.shuffle(a, b, order))
        return made

    def quads(self, a: Reg, b: Reg, half: int) -> Reg:
        """Two pairs of pixels woven by twos."""
        order: list[int] = []
        for part in range(0, self.bytes, 16):
            for k in range(part + 8 * half, part + 8 * half + 8, 2):
                order += (k, k + 1, self.bytes + k, self.bytes + k + 1)
        return self.shuffle(a, b, order)

    def shuffle(self, a: Reg, b: Reg, order: list[int]) -> Reg:
        mask = ", ".join(f"i32 {k}" for k in order)
        text = f"shufflevector {a}, {b}, <{len(order)} x i32> <{mask}>"
        return self.e.emit(a.type, text)
