"""Pooling on channels-last images; windows that extend beyond the image are clipped.

Where full windows lie inside the image, several neighbouring windows are computed together: each
column of taps is reduced once for all windows that share it. A single window inside the image is
unrolled; windows at the borders loop over their taps. Global pooling reduces the pixels of a
channel in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import LaunchScalars, Operands, Tactic, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._emit import Int, Reg, type_suffix, vector_type
from smelt.backends.cpu._epilogue import computes_on_int8
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._math import absolute, larger, power
from smelt.backends.cpu._quantization import LIMITS, as_float
from smelt.backends.cpu.families._operand_packing import packed_tactic
from smelt.backends.cpu.families._pixel_loops import (
    Masks,
    PixelFamily,
    PixelKernelWriter,
    Position,
    check_float_images,
    check_images,
    clipped,
    pixel_launch,
    pixel_loop_of,
    pixel_strides_of,
    spatial_pair,
)
from smelt.backends.cpu.families._tiling import MEMORY_BYTES_PER_SECOND
from smelt.backends.cpu.families._vectors import load, unravel
from smelt.engine import KernelSpec, Launch, Step, parameters
from smelt.ops import AveragePool, GlobalAveragePool, GlobalMaxPool, LpPool, MaxPool
from smelt.types import DType, element_count, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node

_TapRanges = tuple[tuple[Int, Int], tuple[Int, Int]]
"""Ranges of the rows and of the columns of a window that are inside the image."""
_MAX_UNROLLED_TAPS: Final = 16
"""Largest number of taps of a single window that is unrolled. Chosen without a measurement."""
_VECTORS: Final = 4
"""Vectors of channels that are reduced side by side. Chosen without a measurement."""
_WINDOWS_PER_RUN: Final = 4
"""Neighbouring windows that share columns of taps. Four windows reduce 3x3 pooling with stride 1
from 34.7 to 25.2 µs (docs/lab/pooling.md)."""
_MAX_RUN_TAPS: Final = 64
"""Largest number of taps of such a group, shared ones counted once, because they are unrolled.
Chosen without a measurement."""


class PoolFamily(PixelFamily):
    """Maximum, mean and Lp norm of windows and of whole images."""

    name: ClassVar[str] = "pool"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, MaxPool | AveragePool | LpPool | GlobalAveragePool | GlobalMaxPool):
            return
        is_int8 = computes_on_int8(node)
        (check_images if is_int8 else check_float_images)(node)
        # Maxima of bytes compare bytes; means and norms convert them to float32.
        only_compares = is_int8 and isinstance(node.op, MaxPool | GlobalMaxPool)
        options = parameters(lanes=target.vector_bits // (8 if only_compares else 32))
        count = element_count(required_input(node, 0).tensor.shape)
        seconds = (count if isinstance(count, int) else 1e5) * 8 / MEMORY_BYTES_PER_SECOND
        yield packed_tactic(self.name, node, options, seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root, scalars = root_of(node)[0], LaunchScalars()
        lanes = tactic.options.integer("lanes")
        window = getattr(root, "kernel_shape", (1, 1))
        work = math.prod(window)
        pixels, extras = pixel_loop_of(node, operands, operands.packed, scalars, lanes, work)
        x = input_view(operands, 0)
        views = (x, *extras, operands.outputs[0])
        shared: dict[str, Any] = {
            "pixels": pixels.as_json(),
            "a": pixel_strides_of(x.strides, scalars, x.dtype).as_json(),
            "extents": scalars.all_json(spatial_pair(x.shape[2:], 1)),
            "reduction": root.name.removeprefix("global_"),
        }
        if isinstance(root, GlobalAveragePool | GlobalMaxPool):
            # A chunk is `_VECTORS` vectors of an image.
            chunks = node.output.tensor.shape[0] * -(-pixels.channels // (lanes * _VECTORS))
            kernel = kernel_spec(self.name, **shared, whole=True)
            return (Launch(kernel, views, (len(views) - 1,), scalars.values, chunks),)
        windowed = cast("MaxPool | AveragePool | LpPool", root)
        pairs = ((0, 0), *windowed.pad_pairs)[-2:]
        kernel = kernel_spec(
            self.name,
            **shared,
            window=spatial_pair(windowed.kernel_shape, 1),
            steps=spatial_pair(windowed.strides, 1),
            dilations=spatial_pair(windowed.dilations, 1),
            before=(pairs[0][0], pairs[1][0]),
            after=(pairs[0][1], pairs[1][1]),
            include_pad=isinstance(root, AveragePool) and root.count_include_pad,
            exponent=root.p if isinstance(root, LpPool) else 0,
        )
        return (pixel_launch(kernel, pixels, node, views, scalars),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        is_global = kernel.options.get("whole", False)
        return _GlobalPoolWriter(kernel).write() if is_global else _WindowPoolWriter(kernel).write()


class _PoolWriter(PixelKernelWriter):
    """Base of the writers of pools, which reduce to a maximum, a sum, or a sum of powers."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel, 1)
        self.is_max = kernel["reduction"] == "max_pool"
        self.compares = self.is_max and not self.a.dtype.is_float
        self.kind = vector_type("i8", self.p.lanes) if self.compares else self.w.kind

    def first(self) -> Reg:
        """Return the neutral element of the reduction."""
        if self.compares:
            return self.e.constant(LIMITS[self.a.dtype][0], self.kind)
        return self.e.constant(-math.inf if self.is_max else 0.0, self.kind)

    def add(self, total: Reg, element: Reg) -> Reg:
        """Return the total with one more element."""
        if self.compares:
            sign = "u" if self.a.dtype is DType.UINT8 else "s"
            return self.e.call(
                self.kind, f"llvm.{sign}max.{type_suffix(self.kind)}", total, element
            )
        if self.is_max:
            return larger(self.e, total, element)
        return self.e.binary("fadd", total, self.entered(element))

    def entered(self, element: Reg) -> Reg:
        """Return what an element contributes: its power for Lp pooling, else the element."""
        return self.raised(element) if self.k["reduction"] == "lp_pool" else element

    def raised(self, element: Reg) -> Reg:
        """Return ``|x| ** p``."""
        e, exponent = self.e, self.k["exponent"]
        if exponent == 2:
            return e.binary("fmul", element, element)
        magnitude = absolute(e, element)
        if exponent == 1:
            return magnitude
        return power(e, magnitude, e.constant(float(exponent), self.kind))

    def root(self, total: Reg) -> Reg:
        """Return ``total ** (1 / p)``."""
        e, exponent = self.e, self.k["exponent"]
        if exponent == 2:
            return e.unary_intrinsic("sqrt", total)
        return total if exponent == 1 else power(e, total, e.constant(1 / exponent, self.kind))

    def divided(self, total: Reg, count: Int) -> Reg:
        """Return the total divided by a number of elements."""
        e = self.e
        if isinstance(count, int):
            return e.binary("fdiv", total, e.constant(float(count), self.kind))
        number = e.convert("sitofp", count, "float")
        return e.binary("fdiv", total, e.splat(number, self.p.lanes))

    def element(self, at: Reg, vector: int, mask: Reg | None) -> Reg:
        """Load one vector of channels, as float32 unless bytes are only compared."""
        pointer = self.e.at(at, self.step(1, vector * self.p.lanes))
        value = load(self.e, self.kind, pointer, mask, self.a.dtype)
        return value if self.compares else as_float(self.e, value, self.a.dtype)

    def add_all(self, at: Reg, totals: Sequence[Reg], masks: Masks) -> list[Reg]:
        """Return the totals of all vectors with one more element."""
        pairs = enumerate(zip(totals, masks, strict=True))
        return [self.add(total, self.element(at, j, mask)) for j, (total, mask) in pairs]

    def step(self, stride: Any, times: Int) -> Int:
        """Return the bytes of ``times`` steps of a stride."""
        return self.a.bytes_of(self.e, times, stride)


class _WindowPoolWriter(_PoolWriter):
    """Writes pooling over windows."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        fields = ("window", "steps", "dilations", "before", "after")
        values = [kernel[f] for f in fields]
        self.window, self.steps, self.dilations, self.before, self.after = values
        height, width = kernel["extents"]
        self.extents = (self.e.extent(height), self.e.extent(width))

    def write(self) -> str:
        """Write the loops over rows and columns of windows, and return the module."""
        e = self.e
        with self.w.rows() as (image, row):
            top = e.sub(e.mul(row, self.steps[0]), self.before[0])
            rows = clipped(e, top, self.window[0], self.dilations[0], self.extents[0])
            start, stop = self.shared(rows)
            width = e.extent(self.p.width)
            for first, last in ((0, start), (stop, width)):
                with e.loop(first, last) as column:
                    left = e.sub(e.mul(column.index, self.steps[1]), self.before[1])
                    columns = clipped(e, left, self.window[1], self.dilations[1], self.extents[1])
                    self.pixel((image, row, column.index), (top, left), (rows, columns))
            if stop != 0:
                with e.loop(start, stop, _WINDOWS_PER_RUN) as column:
                    left = e.sub(e.mul(column.index, self.steps[1]), self.before[1])
                    self.run((image, row, column.index), (top, left))
        return e.module()

    @property
    def offsets(self) -> set[int]:
        """Input columns that a group of neighbouring windows reads."""
        return {
            window * self.steps[1] + tap * self.dilations[1]
            for window in range(_WINDOWS_PER_RUN)
            for tap in range(self.window[1])
        }

    def shared(self, rows: tuple[Int, Int]) -> tuple[Int, Int]:
        """Return the range of output columns that are computed in groups.

        The range is empty if windows share no columns, if a group has too many taps, or if rows of
        the windows are clipped.
        """
        e, count = self.e, len(self.offsets)
        if count == _WINDOWS_PER_RUN * self.window[1] or count * self.window[0] > _MAX_RUN_TAPS:
            return 0, 0
        step, before = self.steps[1], self.before[1]
        width = e.extent(self.p.width)
        start = e.minimum(-(-before // step), width)
        reach = (self.window[1] - 1) * self.dilations[1]
        # Windows from ``start`` on that end inside the image; the count may be 0.
        start_span = e.sub(e.add(self.extents[1], before + step), reach + 1)
        windows_inside = e.sub(e.div(e.maximum(start_span, 0), step), start)
        windows_inside = e.minimum(windows_inside, e.sub(width, start))
        runs = e.mul(e.div(e.maximum(windows_inside, 0), _WINDOWS_PER_RUN), _WINDOWS_PER_RUN)
        full = e.compare("eq", e.sub(rows[1], rows[0]), self.window[0])
        stop = e.select(full, e.i64(e.add(runs, start)), e.i64(start))
        return start, stop

    def run(self, position: Position, corner: tuple[Int, Int]) -> None:
        """Write a group of neighbouring windows inside the image."""
        e = self.e
        at = e.at(e.pointer(0), self.w.offset(self.a, position[0], *corner))
        taps = self.window[0] * self.window[1]

        for channel, masks in self.w.channels(_VECTORS):
            pointer = e.at(at, self.a.bytes_of(e, channel))
            columns: dict[int, list[Reg]] = {}
            for window in range(_WINDOWS_PER_RUN):
                totals: list[Reg] = []
                for tap in range(self.window[1]):
                    offset = window * self.steps[1] + tap * self.dilations[1]
                    if offset not in columns:
                        columns[offset] = self.column(pointer, offset, masks)
                    totals = self.joined(totals, columns[offset])
                window_position = (position[0], position[1], e.add(position[2], window))
                self.finish(totals, window_position, taps, channel, masks)

    def column(self, at: Reg, offset: int, masks: Masks) -> list[Reg]:
        """Return one column of taps, reduced, for each vector."""
        pointer = self.e.at(at, self.step(self.a.column, offset))
        totals = [self.entered(self.element(pointer, j, mask)) for j, mask in enumerate(masks)]
        for row in range(1, self.window[0]):
            down = self.step(self.a.row, row * self.dilations[0])
            totals = self.add_all(self.e.at(pointer, down), totals, masks)
        return totals

    def joined(self, totals: list[Reg], column: list[Reg]) -> list[Reg]:
        """Return the totals combined with one more reduced column."""
        if not totals:
            return column
        pairs = zip(totals, column, strict=True)
        if self.is_max:
            return [self.add(total, value) for total, value in pairs]
        return [self.e.binary("fadd", total, value) for total, value in pairs]

    def pixel(self, position: Position, corner: tuple[Int, Int], taps: _TapRanges) -> None:
        """Write one window that may be clipped.

        A window of few taps has two versions: unrolled if no tap is clipped, else loops.
        """
        if self.clamps:
            self.clamped(position, corner)
            return
        e = self.e
        at = e.at(e.pointer(0), self.w.offset(self.a, position[0], *corner))
        divisor = self.divisor(corner, taps)
        count = self.window[0] * self.window[1]
        if count > _MAX_UNROLLED_TAPS:
            self.channels(position, at, taps, divisor)
            return
        area = self.area(taps)
        with e.when(e.compare("eq", area, count)):
            self.channels(position, at, None, divisor)
        with e.when(e.compare("ne", area, count)):
            self.channels(position, at, taps, divisor)

    def area(self, taps: _TapRanges) -> Int:
        """Return the number of taps inside the image."""
        (top, bottom), (left, right) = taps
        return self.e.mul(self.e.sub(bottom, top), self.e.sub(right, left))

    @property
    def clamps(self) -> bool:
        """Whether clipped taps may read the nearest pixel inside the image instead.

        This holds for maxima if that pixel belongs to the window anyway, so it does not change the
        result and needs no loops.
        """
        counts = (self.p.height, self.p.width)
        if not self.is_max or self.window[0] * self.window[1] > _MAX_UNROLLED_TAPS:
            return False
        for axis in range(2):
            extent, count = self.extents[axis], counts[axis]
            if not isinstance(extent, int) or not isinstance(count, int):
                return False
            last = (count - 1) * self.steps[axis] - self.before[axis]
            if self.dilations[axis] != 1 or self.before[axis] >= self.window[axis]:
                return False
            if last >= extent:
                return False
        return True

    def clamped(self, position: Position, corner: tuple[Int, Int]) -> None:
        """Write a window whose taps beyond the image read the nearest pixel inside."""
        e = self.e
        at = e.at(e.pointer(0), self.w.offset(self.a, position[0], 0, 0))
        row_offsets, column_offsets = (
            [
                self.step(stride, e.minimum(e.maximum(e.add(corner[axis], tap), 0), last))
                for tap in range(self.window[axis])
            ]
            for axis, stride, last in (
                (0, self.a.row, e.sub(self.extents[0], 1)),
                (1, self.a.column, e.sub(self.extents[1], 1)),
            )
        )

        for channel, masks in self.w.channels(_VECTORS):
            pointer = e.at(at, self.a.bytes_of(e, channel))
            totals = [self.first()] * len(masks)
            for down in row_offsets:
                for across in column_offsets:
                    totals = self.add_all(e.at(e.at(pointer, down), across), totals, masks)
            self.finish(totals, position, 1, channel, masks)

    def divisor(self, corner: tuple[Int, Int], taps: _TapRanges) -> Int:
        """Return the number of elements of the window by which an average divides."""
        e = self.e
        if not self.k["include_pad"]:
            return self.area(taps)
        counts: list[Int] = []
        for axis in range(2):
            # Positions count from the start of the padding, so that no window starts before 0.
            padded = e.add(self.extents[axis], self.before[axis] + self.after[axis])
            start = e.add(corner[axis], self.before[axis])
            bounds = clipped(e, start, self.window[axis], self.dilations[axis], padded)
            counts.append(e.sub(bounds[1], bounds[0]))
        return e.mul(counts[0], counts[1])

    def channels(self, position: Position, at: Reg, taps: _TapRanges | None, divisor: Int) -> None:
        """Write a window for all channels; without ``taps`` it is unrolled."""
        e = self.e

        for channel, masks in self.w.channels(_VECTORS):
            pointer = e.at(at, self.a.bytes_of(e, channel))
            totals = [self.first()] * len(masks)
            if taps is None:
                totals = self.written_out(pointer, totals, masks)
            else:
                totals = self.looped(pointer, totals, masks, taps)
            self.finish(totals, position, divisor, channel, masks)

    def finish(
        self, totals: list[Reg], position: Position, divisor: Int, channel: Int, masks: Masks
    ) -> None:
        """Write the final division or root, the epilogue and the stores of a window."""
        for j, (total, mask) in enumerate(zip(totals, masks, strict=True)):
            value = total
            if self.k["reduction"] == "average_pool":
                value = self.divided(total, divisor)
            elif self.k["reduction"] == "lp_pool":
                value = self.root(total)
            self.w.finish(value, position, self.e.add(channel, j * self.p.lanes), mask)

    def written_out(self, at: Reg, totals: list[Reg], masks: Masks) -> list[Reg]:
        """Return the totals of a window with all taps unrolled."""
        for row in range(self.window[0]):
            down = self.step(self.a.row, row * self.dilations[0])
            for column in range(self.window[1]):
                across = self.step(self.a.column, column * self.dilations[1])
                totals = self.add_all(self.e.at(self.e.at(at, down), across), totals, masks)
        return totals

    def looped(self, at: Reg, totals: list[Reg], masks: Masks, taps: _TapRanges) -> list[Reg]:
        """Return the totals of a window with loops over its taps inside the image."""
        e = self.e
        with e.loop(*taps[0], 1, totals) as row:
            down = e.at(at, self.step(self.a.row, e.mul(row.index, self.dilations[0])))
            with e.loop(*taps[1], 1, row.values) as column:
                across = self.step(self.a.column, e.mul(column.index, self.dilations[1]))
                column.carry = self.add_all(e.at(down, across), column.values, masks)
            row.carry = column.values
        return list(row.values)


class _GlobalPoolWriter(_PoolWriter):
    """Writes pooling over whole images; a chunk is a block of channels of one image."""

    def write(self) -> str:
        """Write the loop over chunks, and return the module."""
        e, p = self.e, self.p
        width = p.lanes * _VECTORS
        blocks = -(-p.channels // width)
        with e.loop(e.begin, e.end) as chunk:
            image, block = unravel(e, chunk.index, (p.images, blocks))
            full_blocks = p.channels // width
            if full_blocks:
                with e.when(e.compare("slt", block, full_blocks)):
                    self.block(image, e.mul(block, width), [None] * _VECTORS)
            remainder = p.channels % width
            if remainder:
                with e.when(e.compare("eq", block, full_blocks)):
                    self.block(image, full_blocks * width, self.w.masks(remainder))
        return e.module()

    def block(self, image: Int, channel: Int, masks: Masks) -> None:
        """Write the reduction of a block of channels over one image."""
        e = self.e
        height, width = (e.extent(x) for x in self.k["extents"])
        at = e.at(e.pointer(0), self.w.offset(self.a, image, 0, 0))
        at = e.at(at, self.a.bytes_of(e, channel))
        with e.loop(0, height, 1, [self.first()] * len(masks)) as row:
            line = e.at(at, self.step(self.a.row, row.index))
            # Rows are summed before the image: rounding errors grow with the side, not the area.
            with e.loop(0, width, 1, [self.first()] * len(masks)) as column:
                pointer = e.at(line, self.step(self.a.column, column.index))
                column.carry = self.add_all(pointer, column.values, masks)
            pairs = zip(row.values, column.values, strict=True)
            row.carry = [self.add(total, part) for total, part in pairs]
        for j, (total, mask) in enumerate(zip(row.values, masks, strict=True)):
            value = total if self.is_max else self.divided(total, e.mul(height, width))
            self.w.finish(value, (image, 0, 0), e.add(channel, j * self.p.lanes), mask)
