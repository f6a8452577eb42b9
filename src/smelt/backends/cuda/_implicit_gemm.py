"""The kernel under convolution and matrix product: tiles of the result, summed on tensor cores.

The result is a matrix: its *rows* are places (images, pixels), its *columns* channels of a group.
A program does one tile; it walks the taps of the window and, in each, the *run* (the channels of
the input), and gathers both factors with strides, so nothing is unfolded. Which taps lie inside of
the image is found out once for each place, as bits. Runs that no whole number of steps fits are
walked together with the taps.

A program may start before the launch before has ended: until that has, it finds its tile, asks for
its part of the weights, and touches nothing else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.backends.cuda._kernel_source import ALIGNED_BYTES, LANGUAGE_TYPES
from smelt.backends.cuda._tile_writer import TileWriter, across, both, divides, sanitize_name
from smelt.engine import KernelSpec, as_json, parameters
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.engine import Json

TF32: Final = "tf32"
"""A precision: float32 is multiplied with ten bits behind the first."""
_ROUND: Final = "cvt.rna.tf32.f32 $0, $1;"
_PREFETCH: Final = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
_LINE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class ImplicitGemmKernel:
    """Everything that decides the text. Extents and strides may be ``("arg", k)``.

    Strides of an axis are the first factor's, the second factor's, then each extra operand's, then
    the result's.
    """

    schedule: str
    """The schedule: "tiled"; "persistent", whose programs keep their weights for many tiles
    ("register_operand": the other factor stays in registers); "prefetch": weights before the PDL
    wait; "split_k_reduce": adds the partial sums; "depthwise"; "fused_pair": two products."""
    stack: tuple[tuple[Json, ...], ...]
    """Axes that tell one product from another (groups, matrices): extent, then strides."""
    rows: tuple[tuple[Json, ...], ...]
    """Axes of the places: extent, strides, and the number of the window's axis, or -1."""
    columns: tuple[Json, ...]
    """Extent, then strides."""
    windows: tuple[tuple[Json, ...], ...]
    """For each axis of the window: taps, the first factor's stride from tap to tap, step of the
    window, dilation, padding before, extent of the input."""
    start: Json
    """How far before the first factor's first element the first tap lies."""
    run: Json
    inner_k_strides: tuple[Json, Json]
    """Of the first and the second factor."""
    tap_stride: Json
    """Of the second factor, from tap to tap."""
    depth: int
    """Elements of a column of the second factor where there is a window: the taps' runs one behind
    the other, then zeros."""
    tile: tuple[int, int, int]
    """Rows, columns and steps of the sum."""
    bias: bool
    """Whether the first extra operand is added to sums in their own precision, before the
    epilogue."""
    bias_scale: float
    alpha: float
    stages: Json
    precision: str
    """How float32 is multiplied: "ieee", "tf32x3" or "tf32"."""
    clamps_edges: bool
    """Whether places and columns behind the last read what the last ones read: their factors lie
    along the run, so that nothing is lost by it."""
    constants: tuple[bool, ...]
    """For each operand, whether it is a weight, which may be read before earlier launches end."""
    prefetches_weights: bool
    """Whether weights are asked for before earlier launches end."""
    prefetches_epilogue: bool
    """Whether extra operands are read before the sum, not after it."""
    split_k: int
    """Parts of the sum that programs do side by side, into a result for each."""
    split_k_partials: int
    """How many such results are added."""
    split_k_stride: Json
    """From the result of a piece to the next one's."""
    num_warps: int
    num_stages: int
    programs: int = 0
    """Where programs hold their weights: how many share a stretch of columns."""
    factors: int = 2
    """Operands that are summed; extra operands follow, then the result."""
    valid_extents: tuple[Json, ...] = ()
    """Where rows go on into the padding: how much of each of their axes is the result's."""
    second_inner_k: int = 0
    """Channels of a second image, whose pixels alone lengthen the sum: then it is factor three."""
    operands: tuple[tuple[str, Json], ...] = ()
    """What `operand_parameters` says."""
    uses_int64_offsets: tuple[bool, ...] = ()
    """For each operand, whether offsets along its outermost axis may need more than 32 bits."""

    def spec(self, family: str) -> KernelSpec:
        """The kernel as data."""
        fields = {
            f.name: as_json(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.name != "operands"
        }
        return KernelSpec(family, parameters(**fields, **dict(self.operands)))


def write_implicit_gemm(kernel: KernelSpec) -> str:
    """The text of a product's kernel."""
    return _WRITERS[kernel["schedule"]](kernel).write()


class ImplicitGemmWriter(TileWriter):
    """Operands: first factor, second factor, extra operands, result."""

    @override
    def prepare(self) -> None:
        self.prepare_columns()
        self.prepare_rows()
        if self.k["prefetches_weights"]:
            self.prefetch_weights()

    def prepare_rows(self) -> None:
        """Where the places' first taps lie."""
        s = self.s
        start = s.extent(self.k["start"])
        rows = self.row_offset(0)
        s.line(f"a_rows = p0 + ({rows}{'' if start == '0' else f' - {start}'})")
        if self.k["second_inner_k"]:
            s.line(f"second_rows = p2 + ({self.row_offset(2)})")

    def prepare_columns(self) -> None:
        """Where the weights of the columns lie."""
        s = self.s
        s.line(f"step = tl.arange(0, {self.tile[2]})")
        name = self.column
        if self.column_ok and self.k["clamps_edges"]:
            name = "filter"
            s.line(f"filter = tl.minimum({self.column}, {self.column_count} - 1)")
        columns = s.sum_of((name, self.columns[2]))
        columns = columns if columns != "0" else f"{name} * 0"
        if self.stack:
            uses_int64_offsets = self.k["uses_int64_offsets"][1]
            columns = s.join(
                s.offset(self.stack_names, self.stack, 1, uses_int64_offsets=uses_int64_offsets),
                columns,
            )
        s.line(f"b_columns = p1 + ({columns})")

    @override
    def sum(self) -> None:
        bm, bn, bk = self.tile
        self.s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        run, second = self.k["run"], self.k["second_inner_k"]
        self.turns = second > 0 and run % bk == second % bk == 0
        if self.windows and not (isinstance(run, int) and run % bk == 0):
            self.sum_together()
        else:
            self.sum_by_tap()
        if second and not self.turns:
            self.sum_second()

    def loop(self, outer: int, inner: str) -> str:
        """The head of the loop over this program's part of the steps."""
        steps = str(outer * int(inner)) if inner.isdigit() else f"{outer} * {inner}"
        if self.turns:
            steps = str(int(steps) + self.k["second_inner_k"] // self.tile[2])
        split_k = self.k["split_k"]
        if split_k == 1:
            return f"for number in range(0, {steps}):"
        each = (
            self.s.divide_up(steps, split_k) if inner.isdigit() else f"tl.cdiv({steps}, {split_k})"
        )
        self.s.line(f"begin = piece * {each}")
        end = f"begin + {each}"
        if not divides(split_k, steps):
            end = f"tl.minimum({end}, {steps})"
        return f"for number in range(begin, {end}):"

    def sum_by_tap(self) -> None:
        """One step of the loop is a stretch of the run within one tap."""
        s, bk = self.s, self.tile[2]
        run = s.extent(self.k["run"])
        stretches = s.divide_up(run, bk)
        with s.block(self.loop(self.taps, stretches)):
            place = ""
            a_ok = self.row_ok if not self.k["clamps_edges"] else ""
            if self.windows:
                s.line(f"tap = number // {stretches}")
                s.line(f"c = (number % {stretches}) * {bk} + step")
                inside, place = self.locate_tap("tap", "")
                a_ok = both(a_ok, inside)
            else:
                s.line(f"c = number * {bk} + step")
            c_ok = "" if divides(bk, run) else f"(c < {run})"
            a_run, b_run = self.k["inner_k_strides"]
            a_at = s.join(place, s.sum_of(("c", a_run)))
            b_at = s.sum_of(*[("tap", self.k["tap_stride"])][: len(self.windows)], ("c", b_run))
            rows = "a_rows"
            if self.turns:
                rows, a_at, b_at, a_ok = "rows", "at", "k", self.switch_to_second_image(a_at, a_ok)
            self.multiply(
                f"{rows}[:, None] + ({a_at})[None, :]",
                both(across(a_ok, 0), across(c_ok, 1)),
                f"b_columns[None, :] + ({b_at})[:, None]",
                both(across("" if self.k["clamps_edges"] else self.column_ok, 1), across(c_ok, 0)),
            )

    def switch_to_second_image(self, a_at: str, a_ok: str) -> str:
        """Take the step from the second image where the first is through; the new condition."""
        s, bk = self.s, self.tile[2]
        steps = self.taps * self.k["run"] // bk
        s.line(f"is_second = number >= {steps}")
        s.line(f"k = number * {bk} + step")
        s.line(f"rows = {self.as_vectors('tl.where(is_second, second_rows, a_rows)')}")
        s.line(f"at = tl.where(is_second, k - {steps * bk}, {a_at})")
        return a_ok and f"({a_ok}) | is_second"

    def as_vectors(self, rows: str) -> str:
        """Addresses in either image; said to be those of whole vectors, if all of them are."""
        size = self.s.dtypes[0].size_bytes
        strides = [axis[1 + operand] for axis in self.rows for operand in (0, 2)]
        is_round = all(isinstance(n, int) and n * size % ALIGNED_BYTES == 0 for n in strides)
        aligned = self.k["aligned"]
        is_round = is_round and aligned[0] and aligned[2] and self.k["start"] == 0
        return f"tl.multiple_of({rows}, {ALIGNED_BYTES})" if is_round else rows

    def sum_second(self) -> None:
        """The pixels of the second image, where steps would reach from one image into both."""
        s, bk, run = self.s, self.tile[2], self.k["second_inner_k"]
        with s.block(f"for number in range(0, {-(-run // bk)}):"):
            s.line(f"c = number * {bk} + step")
            c_ok = "" if run % bk == 0 else f"(c < {run})"
            a_ok = across("" if self.k["clamps_edges"] else self.row_ok, 0)
            b_ok = across("" if self.k["clamps_edges"] else self.column_ok, 1)
            self.multiply(
                "second_rows[:, None] + c[None, :]",
                both(a_ok, across(c_ok, 1)),
                f"b_columns[None, :] + (c + {self.taps * self.k['run']})[:, None]",
                both(b_ok, across(c_ok, 0)),
            )

    def sum_together(self) -> None:
        """Taps and the run are one axis; each step finds its own taps."""
        s, bk, run = self.s, self.tile[2], self.s.extent(self.k["run"])
        total = str(self.taps * int(run))
        with s.block(self.loop(1, s.divide_up(total, bk))):
            s.line(f"k = number * {bk} + step")
            s.line(f"c = k % {run}")
            s.line(f"tap = k // {run}")
            k_ok = "" if divides(bk, total) else f"(k < {total})"
            a_ok = across("" if self.k["clamps_edges"] else self.row_ok, 0)
            inside, place = self.locate_tap("tap", "[:, None]")
            a_at = s.join(place, s.sum_of(("c", self.k["inner_k_strides"][0])))
            depth = total if self.k["second_inner_k"] else self.k["depth"]
            b_ok = "" if divides(bk, depth) else f"(k < {depth})"
            self.multiply(
                f"a_rows[:, None] + ({a_at})[None, :]",
                both(a_ok, inside, across(k_ok, 1)),
                "b_columns[None, :] + k[:, None]",
                both(across("" if self.k["clamps_edges"] else self.column_ok, 1), across(b_ok, 0)),
            )

    def multiply(self, a_at: str, a_mask: str, b_at: str, b_mask: str) -> None:
        self.load_pixels("a", a_at, a_mask)
        self.s.line(f"b = tl.load({b_at}{sanitize_name(b_mask)})")
        self.multiply_by("a", "b")

    def load_pixels(self, name: str, at: str, mask: str) -> None:
        """Load elements of the first factor, in the second's type."""
        a, b = self.s.dtypes[:2]
        cast = f".to({LANGUAGE_TYPES[b]})" if a is not b else ""
        self.s.line(f"{name} = tl.load({at}{sanitize_name(mask)}){cast}")

    def multiply_by(self, pixels: str, weights: str) -> None:
        """Add the product of what is loaded."""
        s, b = self.s, self.s.dtypes[1]
        how = f', input_precision="{self.k["precision"]}"' if b is DType.FLOAT32 else ""
        if b is DType.FLOAT32 and self.k["precision"] == TF32:
            self.round_to_tf32(pixels)
            if not self.k["constants"][1]:
                self.round_to_tf32(weights)
        s.line(f"acc = tl.dot({pixels}, {weights}, acc{how})")

    def round_to_tf32(self, name: str) -> None:
        """Tensor cores cut off what tf32 has no room for: round before they do."""
        how = "dtype=tl.float32, is_pure=True, pack=1"
        self.s.line(f'{name} = tl.inline_asm_elementwise("{_ROUND}", "=r,r", [{name}], {how})')

    def prefetch_weights(self) -> None:
        """Have the tile's weights brought near; tiles below each other, and pieces, share that."""
        s, bn = self.s, self.tile[1]
        run, (_, stride) = self.k["run"], self.k["inner_k_strides"]
        if stride != 1 or not isinstance(run, int):
            return
        line = _LINE_BYTES // s.dtypes[1].size_bytes
        count = -(-(self.taps * run + self.k["second_inner_k"]) // line)
        wide, split_k = max(1, self.k["num_warps"] * WARP_LANES // bn), self.k["split_k"]
        own = "down" if split_k == 1 else f"(down * {split_k} + piece)"
        step = f"{self.down} * {wide * split_k}"
        with s.block(f"for first in range({own} * {wide}, {count}, {step}):"):
            s.line(f"line = tl.minimum(first + tl.arange(0, {wide}), {count - 1}) * {line}")
            s.line("place = (b_columns[:, None] + line[None, :]).to(tl.int64)")
            how = "dtype=tl.int32, is_pure=False, pack=1"
            s.line(f'tl.inline_asm_elementwise("{_PREFETCH}", "=r,l", [place], {how})')


class PersistentWriter(ImplicitGemmWriter):
    """The same by programs that hold the weights of their columns, and do tile after tile below.

    The steps of a sum are written out, each with weights of its own. So the loop is over tiles, and
    what the compiler has come ahead is the next tiles' pixels, and their extra operands.
    """

    @override
    def write(self) -> str:
        s = self.s
        self.find_scalars()
        s.line("program = tl.program_id(0)")
        s.line(f"across = program % {self.across}")
        self.find_columns()
        self.prepare_columns()
        for number, first in enumerate(self.steps()):
            self.load_weight_step(number, first)
        self.read_weights(self.last - self.factors)
        s.wait()
        begin, prefetch = f"program // {self.across}", f"num_stages={self.k['num_stages']}"
        with s.for_each_tile("down", begin, self.down, self.k["programs"], prefetch):
            self.find_rows()
            self.prepare_rows()
            self.sum()
            self.finish()
        return s.text()

    @override
    def sum(self) -> None:
        bm, bn, _ = self.tile
        for number, first in enumerate(self.steps()):
            at, ok = self.pixels(first)
            self.load_pixels(f"a{number}", at, ok)
        self.s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        for number, _ in enumerate(self.steps()):
            self.multiply_by(f"a{number}", f"b{number}")

    def steps(self) -> range:
        """Where the steps of the sum begin, in what the taps' runs and a second image's make."""
        return range(0, self.taps * self.k["run"] + self.k["second_inner_k"], self.tile[2])

    def load_weight_step(self, number: int, first: int) -> None:
        """Load the weights of a step."""
        s, bk = self.s, self.tile[2]
        s.line(f"k = {s.join(str(first), 'step')}")
        total = self.taps * self.k["run"] + self.k["second_inner_k"]
        k_ok = "" if first + bk <= total else f"(k < {total})"
        ok = both(across("" if self.k["clamps_edges"] else self.column_ok, 1), across(k_ok, 0))
        s.line(f"b{number} = tl.load(b_columns[None, :] + k[:, None]{sanitize_name(ok)})")

    def pixels(self, first: int) -> tuple[str, str]:
        """Where a step's elements of the image lie, and which of them are there."""
        s, bk, run = self.s, self.tile[2], self.k["run"]
        own, row_ok = self.taps * run, "" if self.k["clamps_edges"] else self.row_ok
        if first >= own:
            channels = s.join(str(first - own), "step")
            return f"second_rows[:, None] + ({channels})[None, :]", across(row_ok, 0)
        within, place, k_ok = "", "", ""
        channels = s.join(str(first % run), "step")
        if run % bk == 0 and self.windows:
            inside, place = self.locate_tap(str(first // run), "")
            within = across(inside, 0)
        elif run % bk:
            s.line(f"k = {s.join(str(first), 'step')}")
            s.line(f"tap = k // {run}")
            within, place = self.locate_tap("tap", "[:, None]")
            channels = f"k % {run}"
            k_ok = "" if first + bk <= own else f"(k < {own})"
        at = s.join(place, s.sum_of((channels, self.k["inner_k_strides"][0])))
        ok = both(across(row_ok, 0), within, across(k_ok, 1))
        return f"a_rows[:, None] + ({at})[None, :]", ok


class PrefetchWriter(PersistentWriter):
    """A program for each tile again: its weights are there before earlier launches have ended.

    Of a sum in pieces each program has its own piece's.
    """

    @override
    def write(self) -> str:
        return TileWriter.write(self)

    @override
    def prepare(self) -> None:
        self.prepare_rows()
        self.prepare_columns()
        if self.k["split_k"] > 1:
            self.s.line(f"begin = piece * {super().steps().stop // self.k['split_k']}")
        for number, first in enumerate(self.steps()):
            self.load_weight_step(number, first)

    @override
    def steps(self) -> range:
        whole = super().steps()
        return range(0, whole.stop // self.k["split_k"], whole.step)

    @override
    def load_weight_step(self, number: int, first: int) -> None:
        if self.k["split_k"] == 1:
            super().load_weight_step(number, first)
            return
        ok = across("" if self.k["clamps_edges"] else self.column_ok, 1)
        at = f"b_columns[None, :] + (begin + {self.s.join(str(first), 'step')})[:, None]"
        self.s.line(f"b{number} = tl.load({at}{sanitize_name(ok)})")

    @override
    def pixels(self, first: int) -> tuple[str, str]:
        s, bk, run = self.s, self.tile[2], self.k["run"]
        if self.k["split_k"] == 1:
            return super().pixels(first)
        # Whole steps are counted, which the compiler knows to begin where vectors may.
        s.line(f"number = ({s.join('begin', str(first))}) // {bk}")
        channels, inside, place = f"number * {bk}", "", ""
        if self.windows:
            s.line(f"tap = number // {run // bk}")
            inside, place = self.locate_tap("tap", "")
            channels = f"number % {run // bk} * {bk}"
        at = s.join(place, s.sum_of((f"{channels} + step", self.k["inner_k_strides"][0])))
        rows = "a_rows"
        if self.k["second_inner_k"]:
            rows, at, inside = "rows", "at", self.switch_to_second_image(at, inside)
        row_ok = "" if self.k["clamps_edges"] else self.row_ok
        return f"{rows}[:, None] + ({at})[None, :]", across(both(row_ok, inside), 0)


class DepthwiseWriter(TileWriter):
    """Each channel with its own window. Operands: image, weights by tap, extra operands, result."""

    @override
    def prepare(self) -> None:
        s = self.s
        start = s.extent(self.k["start"])
        rows = self.row_offset(0)
        columns = self.column_offset(0)
        s.line(f"a_rows = p0 + ({rows}{'' if start == '0' else f' - {start}'})")
        s.line(f"a_tile = a_rows[:, None] + ({columns})[None, :]")

    @override
    def sum(self) -> None:
        s = self.s
        columns = across(self.column_ok, 1)
        for tap in range(self.taps):
            inside, place = self.locate_tap(str(tap), "")
            ok = both(across(inside, 0), columns)
            s.line(f"a = tl.load(a_tile + ({place}){sanitize_name(ok)}).to(tl.float32)")
            weights = f"p1 + (column + {tap * self.columns[0]})"
            s.line(f"b = tl.load({weights}{sanitize_name(self.column_ok)}).to(tl.float32)[None, :]")
            s.line("acc = a * b" if tap == 0 else "acc += a * b")


class SplitKReduceWriter(TileWriter):
    """Adds the results of pieces. Operands: those results, extra operands, result."""

    @override
    def sum(self) -> None:
        s = self.s
        at, mask = self.place(0)
        for piece in range(self.k["split_k_partials"]):
            stride = s.product_of([piece, self.k["split_k_stride"]]) if piece else "0"
            text = f"tl.load({at} + {stride}{sanitize_name(mask)})"
            s.line(f"acc = {text if piece == 0 else f'acc + {text}'}")


_WRITERS: Final[dict[str, type[TileWriter]]] = {
    "tiled": ImplicitGemmWriter,
    "persistent": PersistentWriter,
    "prefetch": PrefetchWriter,
    "split_k_reduce": SplitKReduceWriter,
    "depthwise": DepthwiseWriter,
}
