"""Implicit-GEMM kernel of convolutions and matrix products: result tiles on tensor cores.

The result is a matrix. Its *rows* are output positions (images, pixels), its *columns* the channels
of a group. A program computes one tile. It loops over the taps of the window and, within each tap,
over the inner K (the input channels), and gathers both operands with strides, so no im2col buffer
exists. Which taps lie inside the image is computed once per position, as bits. If the inner K is
not a multiple of the step, taps and inner K are walked as one axis.

A program may start before the preceding launch has ended. Until then it computes the coordinates of
its tile, prefetches its weights, and accesses nothing else.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.backends.cuda._kernel_source import ALIGNED_BYTES, LANGUAGE_TYPES
from smelt.backends.cuda._tile_writer import (
    TileWriter,
    all_of,
    broadcast_condition,
    divides,
    mask_arguments,
)
from smelt.types import DType, override

if TYPE_CHECKING:
    from collections.abc import Generator

TF32: Final = "tf32"
"""Precision in which float32 operands are rounded to a mantissa of ten bits."""
_ROUND: Final = "cvt.rna.tf32.f32 $0, $1;"
"""PTX that rounds float32 to TF32."""
_PREFETCH: Final = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
"""PTX that prefetches a line to the L2 cache."""
_LINE_BYTES: Final = 128
"""Size of a cache line in bytes."""


class ImplicitGemmWriter(TileWriter):
    """Writer of tiled products. Operands: A, B, epilogue operands, result."""

    @override
    def prepare(self) -> None:
        self.prepare_columns()
        self.prepare_rows()
        if self.k.prefetches_weights:
            self.prefetch_weights()

    def prepare_rows(self) -> None:
        """Write the addresses of the rows' first taps in A."""
        self.s.line(f"a_rows = {self.first_taps()}")
        if self.k.second_image_channels:
            self.s.line(f"second_rows = p2 + ({self.row_offset(2)})")

    def prepare_columns(self) -> None:
        """Write the addresses of the columns in B."""
        s = self.s
        s.line(f"step = tl.arange(0, {self.tile[2]})")
        name = self.column
        if self.column_ok and self.k.clamps_edges:
            name = "filter"
            s.line(f"filter = tl.minimum({self.column}, {self.column_count} - 1)")
        columns = s.sum_of((name, self.columns[2]))
        columns = columns if columns != "0" else f"{name} * 0"
        s.line(f"b_columns = p1 + ({s.join(self.batch_offset(1), columns)})")

    @override
    def sum(self) -> None:
        bm, bn, bk = self.tile
        self.s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        inner_k, second = self.k.run, self.k.second_image_channels
        self.merges_images = second > 0 and self.k.fixed_run % bk == second % bk == 0
        if self.windows and not (isinstance(inner_k, int) and inner_k % bk == 0):
            self.sum_together()
        else:
            self.sum_by_tap()
        if second and not self.merges_images:
            self.sum_second()

    def loop(self, tap_count: int, steps_per_tap: str) -> str:
        """Return the header of the loop over this program's steps of the reduction."""
        split_k = self.k.split_k
        if steps_per_tap.isdigit():
            steps = str(tap_count * int(steps_per_tap))
            if self.merges_images:
                steps = str(int(steps) + self.k.second_image_channels // self.tile[2])
            part_steps = self.s.divide_up(steps, split_k)
        else:
            steps = f"{tap_count} * {steps_per_tap}"
            part_steps = f"tl.cdiv({steps}, {split_k})"
        if split_k == 1:
            return f"for number in range(0, {steps}):"
        self.s.line(f"begin = piece * {part_steps}")
        end = f"begin + {part_steps}"
        if not divides(split_k, steps):
            end = f"tl.minimum({end}, {steps})"
        return f"for number in range(begin, {end}):"

    def sum_by_tap(self) -> None:
        """Write a loop in which each step is a block of the inner K within one tap."""
        s, bk = self.s, self.tile[2]
        inner_k = s.extent(self.k.run)
        steps_per_tap = s.divide_up(inner_k, bk)
        with s.block(self.loop(self.taps, steps_per_tap)):
            tap_offset = ""
            a_ok = self.a_row_ok
            if self.windows:
                s.line(f"tap = number // {steps_per_tap}")
                s.line(f"c = (number % {steps_per_tap}) * {bk} + step")
                inside, tap_offset = self.locate_tap("tap", "")
                a_ok = all_of(a_ok, inside)
            else:
                s.line(f"c = number * {bk} + step")
            c_ok = "" if divides(bk, inner_k) else f"(c < {inner_k})"
            a_stride, b_stride = self.k.inner_k_strides
            a_at = s.join(tap_offset, s.sum_of(("c", a_stride)))
            b_at = s.sum_of(*[("tap", self.k.tap_stride)][: len(self.windows)], ("c", b_stride))
            rows = "a_rows"
            if self.merges_images:
                rows, a_at, b_at, a_ok = "rows", "at", "k", self.switch_to_second_image(a_at, a_ok)
            self.multiply(
                f"{rows}[:, None] + ({a_at})[None, :]",
                all_of(broadcast_condition(a_ok, 0), broadcast_condition(c_ok, 1)),
                f"b_columns[None, :] + ({b_at})[:, None]",
                all_of(self.b_column_ok, broadcast_condition(c_ok, 0)),
            )

    def switch_to_second_image(self, a_at: str, a_ok: str) -> str:
        """Write the switch to the second image after the first; return the new mask of A."""
        s, bk = self.s, self.tile[2]
        steps = self.taps * self.k.fixed_run // bk
        s.line(f"is_second = number >= {steps}")
        s.line(f"k = number * {bk} + step")
        s.line(f"rows = {self.as_vectors('tl.where(is_second, second_rows, a_rows)')}")
        s.line(f"at = tl.where(is_second, k - {steps * bk}, {a_at})")
        return a_ok and f"({a_ok}) | is_second"

    def as_vectors(self, rows: str) -> str:
        """Return addresses in either image, declared aligned if they always are."""
        size = self.s.dtypes[0].size_bytes
        strides = [axis[1 + operand] for axis in self.rows for operand in (0, 2)]
        is_aligned = all(isinstance(n, int) and n * size % ALIGNED_BYTES == 0 for n in strides)
        aligned = self.s.aligned
        is_aligned = is_aligned and aligned[0] and aligned[2] and self.k.start == 0
        return f"tl.multiple_of({rows}, {ALIGNED_BYTES})" if is_aligned else rows

    def sum_second(self) -> None:
        """Write the sum over the second image, if one loop cannot cover both images."""
        s, bk, inner_k = self.s, self.tile[2], self.k.second_image_channels
        with s.block(f"for number in range(0, {-(-inner_k // bk)}):"):
            s.line(f"c = number * {bk} + step")
            c_ok = "" if inner_k % bk == 0 else f"(c < {inner_k})"
            self.multiply(
                "second_rows[:, None] + c[None, :]",
                all_of(broadcast_condition(self.a_row_ok, 0), broadcast_condition(c_ok, 1)),
                f"b_columns[None, :] + (c + {self.taps * self.k.fixed_run})[:, None]",
                all_of(self.b_column_ok, broadcast_condition(c_ok, 0)),
            )

    def sum_together(self) -> None:
        """Write a loop over taps and inner K as one axis; each element has its own tap."""
        s, bk, inner_k = self.s, self.tile[2], self.s.extent(self.k.run)
        total = str(self.taps * int(inner_k))
        with s.block(self.loop(1, s.divide_up(total, bk))):
            s.line(f"k = number * {bk} + step")
            s.line(f"c = k % {inner_k}")
            s.line(f"tap = k // {inner_k}")
            k_ok = "" if divides(bk, total) else f"(k < {total})"
            inside, tap_offset = self.locate_tap("tap", "[:, None]")
            a_at = s.join(tap_offset, s.sum_of(("c", self.k.inner_k_strides[0])))
            depth = total if self.k.second_image_channels else self.k.depth
            b_ok = "" if divides(bk, depth) else f"(k < {depth})"
            self.multiply(
                f"a_rows[:, None] + ({a_at})[None, :]",
                all_of(broadcast_condition(self.a_row_ok, 0), inside, broadcast_condition(k_ok, 1)),
                "b_columns[None, :] + k[:, None]",
                all_of(self.b_column_ok, broadcast_condition(b_ok, 0)),
            )

    def multiply(self, a_at: str, a_mask: str, b_at: str, b_mask: str) -> None:
        """Write the loads of A and B for one step, and their product."""
        self.load_pixels("a", a_at, a_mask)
        self.s.line(f"b = tl.load({b_at}{mask_arguments(b_mask)})")
        self.multiply_by("a", "b")

    def load_pixels(self, name: str, at: str, mask: str) -> None:
        """Write the load of A elements, converted to the type of B."""
        a, b = self.s.dtypes[:2]
        cast = f".to({LANGUAGE_TYPES[b]})" if a is not b else ""
        self.s.line(f"{name} = tl.load({at}{mask_arguments(mask)}){cast}")

    def multiply_by(self, pixels: str, weights: str) -> None:
        """Write the product of loaded operands, added to ``acc``."""
        s, b = self.s, self.s.dtypes[1]
        precision = f', input_precision="{self.k.input_precision}"' if b is DType.FLOAT32 else ""
        if b is DType.FLOAT32 and self.k.input_precision == TF32:
            self.round_to_tf32(pixels)
            if not self.k.constants[1]:
                self.round_to_tf32(weights)
        s.line(f"acc = tl.dot({pixels}, {weights}, acc{precision})")

    def round_to_tf32(self, name: str) -> None:
        """Write the rounding to TF32: tensor cores would truncate."""
        options = "dtype=tl.float32, is_pure=True, pack=1"
        self.s.line(f'{name} = tl.inline_asm_elementwise("{_ROUND}", "=r,r", [{name}], {options})')

    def prefetch_weights(self) -> None:
        """Write the L2 prefetch of the tile's weights, divided among tiles that share columns."""
        s, bn = self.s, self.tile[1]
        inner_k, (_, stride) = self.k.run, self.k.inner_k_strides
        if stride != 1 or not isinstance(inner_k, int):
            return
        line_elements = _LINE_BYTES // s.dtypes[1].size_bytes
        lines = -(-(self.taps * inner_k + self.k.second_image_channels) // line_elements)
        lines_at_once, split_k = max(1, self.k.num_warps * WARP_LANES // bn), self.k.split_k
        part = "down" if split_k == 1 else f"(down * {split_k} + piece)"
        step = f"{self.row_tiles} * {lines_at_once * split_k}"
        with s.block(f"for first in range({part} * {lines_at_once}, {lines}, {step}):"):
            numbers = f"tl.minimum(first + tl.arange(0, {lines_at_once}), {lines - 1})"
            s.line(f"line = {numbers} * {line_elements}")
            s.line("place = (b_columns[:, None] + line[None, :]).to(tl.int64)")
            options = "dtype=tl.int32, is_pure=False, pack=1"
            s.line(f'tl.inline_asm_elementwise("{_PREFETCH}", "=r,l", [place], {options})')


class PersistentWriter(ImplicitGemmWriter):
    """Writer of persistent products: programs keep the weights of their columns for many tiles.

    The steps of the reduction are unrolled, each with weights in variables of its own. The loop is
    over tiles, so the compiler pipelines the loads of the next tiles' pixels and epilogue operands.
    """

    @override
    def write(self) -> str:
        s = self.s
        self.find_own_columns()
        self.load_weights(0)
        self.read_weights(self.last - self.first_extra)
        s.wait()
        begin, prefetch = f"program // {self.column_tiles}", f"num_stages={self.k.num_stages}"
        with self.each_tile(begin, prefetch):
            self.find_rows()
            self.prepare_rows()
            self.sum()
            self.finish()
        return s.text()

    @contextmanager
    def each_tile(self, first: str, options: str = "") -> Generator[None]:
        """Write a loop over the tiles of a program; in reverse if the kernel is reversed.

        Args:
            first: first tile of the program.
            options: options of ``tl.range``, such as the number of pipeline stages.
        """
        s, count = self.s, self.row_tiles
        extents = f"{first}, {count}, {self.k.row_programs}"
        loop = f"tl.range({extents}, {options})" if options else f"range({extents})"
        with s.block(f"for {'walked' if s.is_tile_order_reversed else 'down'} in {loop}:"):
            if s.is_tile_order_reversed:
                s.line(f"down = {count} - 1 - walked")
            yield

    def find_own_columns(self) -> None:
        """Write the columns that the program keeps, and the addresses of their weights."""
        self.s.narrow_scalars()
        self.s.line("program = tl.program_id(0)")
        self.s.line(f"across = program % {self.column_tiles}")
        self.find_columns(f"across * {self.tile[1]}")
        self.prepare_columns()

    @override
    def sum(self) -> None:
        self.load_first_operand()
        self.add_first(0)

    def load_first_operand(self) -> None:
        """Write the loads of the pixels of all steps."""
        for number, first in enumerate(self.steps()):
            at, ok = self.pixels(first)
            self.load_pixels(f"a{number}", at, ok)

    def load_weights(self, first_number: int) -> None:
        """Write the loads of the weights of all steps, numbered from ``first_number`` on."""
        for number, first in enumerate(self.steps(), first_number):
            self.load_weight_step(number, first)

    def add_first(self, first_number: int) -> None:
        """Write the product of the loaded pixels with the weights from a number on."""
        bm, bn, _ = self.tile
        self.s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        for number, _ in enumerate(self.steps()):
            self.multiply_by(f"a{number}", f"b{first_number + number}")

    def steps(self) -> range:
        """Return the first K index of each step, over the taps' inner K and the second image's."""
        return range(0, self.taps * self.k.fixed_run + self.k.second_image_channels, self.tile[2])

    def load_weight_step(self, number: int, first: int) -> None:
        """Write the load of a step's weights."""
        s, bk = self.s, self.tile[2]
        s.line(f"k = {s.join(str(first), 'step')}")
        total = self.taps * self.k.fixed_run + self.k.second_image_channels
        k_ok = "" if first + bk <= total else f"(k < {total})"
        ok = all_of(self.b_column_ok, broadcast_condition(k_ok, 0))
        s.line(f"b{number} = tl.load(b_columns[None, :] + k[:, None]{mask_arguments(ok)})")

    def pixels(self, first: int) -> tuple[str, str]:
        """Return the addresses of a step's elements of A, and their mask."""
        s, bk, inner_k = self.s, self.tile[2], self.k.fixed_run
        first_image_k, row_ok = self.taps * inner_k, broadcast_condition(self.a_row_ok, 0)
        if first >= first_image_k:
            channels = s.join(str(first - first_image_k), "step")
            return f"second_rows[:, None] + ({channels})[None, :]", row_ok
        tap_ok, tap_offset, k_ok = "", "", ""
        channels = s.join(str(first % inner_k), "step")
        if inner_k % bk == 0 and self.windows:
            inside, tap_offset = self.locate_tap(str(first // inner_k), "")
            tap_ok = broadcast_condition(inside, 0)
        elif inner_k % bk:
            s.line(f"k = {s.join(str(first), 'step')}")
            s.line(f"tap = k // {inner_k}")
            tap_ok, tap_offset = self.locate_tap("tap", "[:, None]")
            channels = f"k % {inner_k}"
            k_ok = "" if first + bk <= first_image_k else f"(k < {first_image_k})"
        at = s.join(tap_offset, s.sum_of((channels, self.k.inner_k_strides[0])))
        ok = all_of(row_ok, tap_ok, broadcast_condition(k_ok, 1))
        return f"a_rows[:, None] + ({at})[None, :]", ok


class PrefetchWriter(PersistentWriter):
    """Writer of products whose weights are loaded before the PDL wait; one program per tile.

    With split-K, a program loads the weights of its own part.
    """

    @override
    def write(self) -> str:
        return TileWriter.write(self)

    @override
    def prepare(self) -> None:
        self.prepare_rows()
        self.prepare_columns()
        if self.k.split_k > 1:
            self.s.line(f"begin = piece * {super().steps().stop // self.k.split_k}")
        self.load_weights(0)

    @override
    def steps(self) -> range:
        all_steps = super().steps()
        return range(0, all_steps.stop // self.k.split_k, all_steps.step)

    @override
    def load_weight_step(self, number: int, first: int) -> None:
        if self.k.split_k == 1:
            super().load_weight_step(number, first)
            return
        at = f"b_columns[None, :] + (begin + {self.s.join(str(first), 'step')})[:, None]"
        self.s.line(f"b{number} = tl.load({at}{mask_arguments(self.b_column_ok)})")

    @override
    def pixels(self, first: int) -> tuple[str, str]:
        s, bk, inner_k = self.s, self.tile[2], self.k.fixed_run
        if self.k.split_k == 1:
            return super().pixels(first)
        # Counting in whole steps shows the compiler that each step starts at an aligned vector.
        s.line(f"number = ({s.join('begin', str(first))}) // {bk}")
        channels, inside, tap_offset = f"number * {bk}", "", ""
        if self.windows:
            s.line(f"tap = number // {inner_k // bk}")
            inside, tap_offset = self.locate_tap("tap", "")
            channels = f"number % {inner_k // bk} * {bk}"
        at = s.join(tap_offset, s.sum_of((f"{channels} + step", self.k.inner_k_strides[0])))
        rows = "a_rows"
        if self.k.second_image_channels:
            rows, at, inside = "rows", "at", self.switch_to_second_image(at, inside)
        ok = broadcast_condition(all_of(self.a_row_ok, inside), 0)
        return f"{rows}[:, None] + ({at})[None, :]", ok


class DepthwiseWriter(TileWriter):
    """Writer of depthwise products. Operands: image, weights by tap, epilogue operands, result."""

    @override
    def prepare(self) -> None:
        self.s.line(f"a_rows = {self.first_taps()}")
        self.s.line(f"a_tile = a_rows[:, None] + ({self.column_offset(0)})[None, :]")

    @override
    def sum(self) -> None:
        s = self.s
        columns = broadcast_condition(self.column_ok, 1)
        for tap in range(self.taps):
            inside, tap_offset = self.locate_tap(str(tap), "")
            ok = all_of(broadcast_condition(inside, 0), columns)
            s.line(f"a = tl.load(a_tile + ({tap_offset}){mask_arguments(ok)}).to(tl.float32)")
            weights = f"p1 + (column + {tap * self.columns[0]}){mask_arguments(self.column_ok)}"
            s.line(f"b = tl.load({weights}).to(tl.float32)[None, :]")
            s.line("acc = a * b" if tap == 0 else "acc += a * b")


class SplitKReduceWriter(TileWriter):
    """Writer of the sum of partial sums. Operands: partial sums, epilogue operands, result."""

    @override
    def sum(self) -> None:
        s = self.s
        at, mask = self.addresses(0)
        for piece in range(self.k.split_k_partials):
            stride = s.product_of([piece, self.k.split_k_stride]) if piece else "0"
            text = f"tl.load({at} + {stride}{mask_arguments(mask)})"
            s.line(f"acc = {text if piece == 0 else f'acc + {text}'}")


WRITERS: Final[dict[str, type[TileWriter]]] = {
    "tiled": ImplicitGemmWriter,
    "persistent": PersistentWriter,
    "prefetch": PrefetchWriter,
    "split_k_reduce": SplitKReduceWriter,
    "depthwise": DepthwiseWriter,
}
"""Writer of each schedule."""
