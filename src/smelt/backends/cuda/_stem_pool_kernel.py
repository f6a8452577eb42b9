"""Kernel of a stem convolution and the max pooling after it; the intermediate is never stored.

A program walks down a strip of pooled positions. Rows of its tile are horizontally adjacent pooled
positions, of one image or several. It multiplies the stem's columns under each position one after
another (a *phase*), for as many of the stem's rows as a vertical stride of the pooling. So all
elements of a pooling window are in the same thread, whatever the order of elements on tensor cores,
and maxima need only registers. If windows overlap vertically, the shared stem row is kept from the
step before.

Vertically adjacent rows of the stem share most of their window; these pixels are loaded once.

Operands: padded pixels, filters packed as for `RegisterOperandWriter`, the bias if there is one,
the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR, KernelWriter
from smelt.backends.cuda._register_operand_kernel import (
    FRAGMENT,
    FRAGMENT_ROW,
    ROWS,
    fragment_groups,
    join_fragments,
    load_filters,
    write_fragment,
)
from smelt.backends.cuda._tile_writer import all_of, divides, mask_arguments
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.engine import KernelSpec

FUSED_STEM_POOL: Final = "fused_stem_pool"
"""Name of the kernel family."""
_LEAST: Final = "float('-inf')"
"""Neutral element of the maximum."""


class StemPoolWriter(KernelWriter):
    """Writer of a stem with its pooling."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.kind = LANGUAGE_TYPES[self.s.dtypes[-1]]
        """What the result is stored as: of these maxima are found."""
        row_window, column_window = kernel["pool"]
        taps, self.row_stride, self.pad_top = row_window
        self.column_taps, self.column_stride, self.pad_left = column_window
        self.keeps_last_row = taps > self.row_stride
        """Whether vertically adjacent windows overlap by one row, which is kept between steps."""
        self.rows = taps - self.keeps_last_row
        """Rows of the stem that a step computes."""
        self.row = kernel["lines"] * kernel["line"]
        """Distance from a row of the stem to the next one's pixels, in elements."""
        self.columns: int = kernel["tile"][1]
        self.pooled_width = kernel["pooled"][1]
        self.places = self.s.product_of((kernel["images"][0], self.pooled_width))
        self.vectors = -(-kernel["run"] // VECTOR)
        """Vectors of a tap's inner K."""

    @override
    def write(self) -> str:
        s, k = self.s, self.k
        s.narrow_scalars()
        self.load_weights()
        s.wait()
        self.find_pixels()
        if self.keeps_last_row:
            self.write_first_row()
        end = f"tl.minimum(first + {k['rows_per_program']}, {k['pooled'][0]})"
        with s.block(f"for y in range(first, {end}):"):
            self.write_step()
        return s.text()

    def maximum(self, a: str, b: str) -> str:
        """Return the maximum with NaN propagated; the cast undoes Triton's promotion to float32."""
        return f"tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL).to({self.kind})"

    def load_weights(self) -> None:
        """Write the coordinates of the program's strip, and the loads of its filters."""
        s, k = self.s, self.k
        parts = -(-k["pooled"][0] // k["rows_per_program"])
        column_tiles = k["filters"] // self.columns
        s.line("program = tl.program_id(0)")
        s.line(f"strip = program // {column_tiles}")
        s.line(f"first = strip % {parts} * {k['rows_per_program']}")
        s.line(f"tile = strip // {parts}")
        s.line(f"column = program % {column_tiles} * {self.columns} + tl.arange(0, {self.columns})")
        s.line(f"b_columns = p1 + column * {k['depth']}")
        load_filters(s, k["depth"] // FRAGMENT)
        s.line(f"within = tl.arange(0, {FRAGMENT}) % {VECTOR}")
        s.line(f"vector = tl.arange(0, {FRAGMENT}) // {VECTOR}")
        line, run, vectors = k["line"], k["run"], self.vectors
        fragments_of = [piece for row in range(self.rows) for piece in self.fragments_of(row)]
        for start in sorted({first % vectors for first, _ in fragments_of}):
            s.line(f"place = {start} + vector")
            s.line(f"c = place % {vectors} * {VECTOR} + within")
            s.line(f"offset{start} = place // {vectors} * {line} + c")
            if run % VECTOR:
                s.line(f"keep{start} = tl.where(c < {run}, -1, 0).to(tl.int16)[None, :]")
        s.line(f"least = tl.full([{ROWS}, {self.columns}], {_LEAST}, {self.kind})")

    def find_pixels(self) -> None:
        """Write the positions of the tile's rows, in load order and in store order."""
        s, (_, image) = self.s, self.k["images"]
        wide = [".to(tl.int64)" if is_wide else "" for is_wide in self.k["uses_int64_offsets"]]
        of_image = f"(place // {self.pooled_width})"
        s.line(f"q = tl.arange(0, {ROWS})")
        s.line(f"q = {FRAGMENT_ROW}")
        s.line(f"place = tl.minimum(tile * {ROWS} + q, {self.places} - 1)")
        s.line(f"x = place % {self.pooled_width} * {self.column_stride} - {self.pad_left}")
        s.line(f"images = p0 + {s.sum_of((f'{of_image}{wide[0]}', image))}")
        n, _, across = self.k["strides"]
        s.line(f"q = tl.arange(0, {ROWS})")
        s.line(f"place = tile * {ROWS} + q")
        s.line(f"beside = place % {self.pooled_width}")
        s.line(f"out = {s.sum_of((f'{of_image}{wide[1]}', n), ('beside', across))}")
        self.masks = not divides(ROWS, self.places)
        if self.masks:
            s.line(f"is_own = place < {self.places}")

    # ---- rows of the stem

    def write_first_row(self) -> None:
        """Write the stem row above the first window, which later steps keep from before."""
        s = self.s
        s.line(f"top = first * {self.row_stride * self.row}")
        there = f"first * {self.row_stride} >= {self.pad_top}" if self.pad_top else None
        self.gather([there], {"low": "least"})
        s.line("above = low")

    def write_step(self) -> None:
        """Write a step of the loop: one row of the result."""
        s = self.s
        s.line(f"top = (y * {self.row_stride} + {int(self.keeps_last_row)}) * {self.row}")
        s.line(f"stem = y * {self.row_stride} + {int(self.keeps_last_row) - self.pad_top}")
        rows = [self.row_condition(row) for row in range(self.rows)]
        if self.keeps_last_row:
            self.gather(rows, {"best": "above", "low": "least"})
            s.line("above = low")
        else:
            self.gather(rows, {"best": "least"})
        if self.k["has_relu"]:
            s.line(f"best = {self.maximum('best', '0.0')}")
        self.store()

    def gather(self, rows: Sequence[str | None], names: Mapping[str, str]) -> None:
        """Write the maxima of each window's part of some stem rows, and of the last of these rows.

        Args:
            rows: condition that each row exists, or None.
            names: variables with their initial values: ``best`` of all rows, ``low`` of the last.
        """
        s = self.s
        for name, value in names.items():
            s.line(f"{name} = {value}")

        def merge(row: int) -> None:
            for name in names:
                if name != "low" or row == len(rows) - 1:
                    s.line(f"{name} = {self.maximum(name, f'v{row}')}")

        with s.block(f"for phase in range(0, {self.column_taps}):"):
            self.multiply(rows, merge)

    def row_condition(self, row: int) -> str | None:
        """Return the condition that a row of a step exists, or None if it always does."""
        height, last = self.k["stem"][0], self.k["pooled"][0] - 1
        first = row + int(self.keeps_last_row) - self.pad_top
        low = f"stem + {row} >= 0" if first < 0 else ""
        high = f"stem + {row} < {height}" if last * self.row_stride + first >= height else ""
        return all_of(low, high) or None

    def store(self) -> None:
        """Write the store of one row of the result."""
        s, (_, down, _) = self.s, self.k["strides"]
        ok = ", mask=is_own[:, None]" if self.masks else ""
        place = s.join("out", s.sum_of(("y", down)))
        at = f"(p{self.last} + ({place}))[:, None] + column[None, :]"
        s.line(f"tl.store({at}, best{ok})")

    # ---- the stem

    def multiply(self, rows: Sequence[str | None], merge: Callable[[int], None]) -> None:
        """Write the stem's results for some rows at a phase.

        Args:
            rows: condition that each row exists, or None.
            merge: called after each row's result is written.
        """
        s, k = self.s, self.k
        at, width = "x + phase", k["stem"][1]
        # Past an edge, the pixel at the edge is read again: it is in the same pooling windows, so
        # their maxima do not change.
        at = f"tl.maximum({at}, 0)" if self.pad_left > 0 else at
        last = (self.pooled_width - 1) * self.column_stride + self.column_taps - self.pad_left
        at = f"tl.minimum({at}, {width - 1})" if last > width else at
        s.line(f"pixels = images + ({at}) * {k['pixel']}")
        loaded: dict[tuple[int, int], str] = {}
        later = [piece for row in range(1, len(rows)) for piece in self.fragments_of(row)]
        for row, is_there in enumerate(rows):
            own = [self.load(piece, loaded) for piece in self.fragments_of(row)]
            s.line(f"acc = tl.zeros([{ROWS}, {self.columns}], tl.float32)")
            for first, count in fragment_groups(len(own)):
                fragments = join_fragments(own[first : first + count])
                s.line(f"acc = tl.dot({fragments}, b{first}, acc)")
                # Loaded only now: the product has freed some registers.
                for piece in later:
                    self.load(piece, loaded)
            bias = " + tl.load(p2 + column).to(tl.float32)[None, :]" if k["bias"] else ""
            s.line(f"v{row} = (acc{bias}).to({self.kind})")
            if is_there:
                s.line(f"v{row} = tl.where({is_there}, v{row}, least)")
            merge(row)

    def fragments_of(self, row: int) -> list[tuple[int, int]]:
        """Return a row's fragments: first vector of each in the strip, and number of vectors."""
        first, count = row * self.k["lines"] * self.vectors, self.k["taps"] * self.vectors
        each = FRAGMENT // VECTOR
        return [(first + at, min(each, count - at)) for at in range(0, count, each)]

    def load(self, piece: tuple[int, int], loaded: dict[tuple[int, int], str]) -> str:
        """Write the load of a fragment, permuted for tensor cores, unless it is loaded."""
        if piece in loaded:
            return loaded[piece]
        s, (first, count) = self.s, piece
        start, line = first % self.vectors, first // self.vectors * self.k["line"]
        name = loaded[piece] = f"a{len(loaded)}"
        there = mask_arguments(f"(vector < {count})[None, :]") if count * VECTOR < FRAGMENT else ""
        s.line(f"a = tl.load(pixels[:, None] + (top + {line}) + offset{start}[None, :]{there})")
        write_fragment(s, name, f"keep{start}" if self.k["run"] % VECTOR else "")
        return name
