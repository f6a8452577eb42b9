"""The kernel of a stem and of the pooling behind it: what is between the two is never stored.

A program walks down a strip of pooled places. Rows of its tile are places, one of an image's row or
some neighbours; of the stem's columns under a place it multiplies one after another (a *phase*),
each of as many of the stem's rows as a step down takes. So all that one window pools is in the same
thread, whatever order tensor cores have elements in, and maxima need nothing but registers. What a
window has of the stem's row above, the step before has left.

Stems' rows below each other share most of their window: what both read is read once.

Operands: pixels with room for all that is read, filters as `RegisterOperandWriter` has them, the
bias if
there is one, the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR, Source
from smelt.backends.cuda._register_operand_kernel import (
    FRAGMENT,
    FRAGMENT_ROW,
    MASK_PTX,
    ROWS,
    group_concurrent_steps,
    joined,
    taken,
)
from smelt.backends.cuda._tile_writer import both, divides, sanitize_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.engine import KernelSpec

FUSED_STEM_POOL: Final = "fused_stem_pool"
_LEAST: Final = "float('-inf')"


def write_stem_pool(kernel: KernelSpec) -> str:
    """The text of a strip's kernel."""
    return _StemPoolWriter(kernel).write()


class _StemPoolWriter:
    def __init__(self, kernel: KernelSpec) -> None:
        self.k, self.s = kernel, Source(kernel)
        self.factor, self.kind = (LANGUAGE_TYPES[self.s.dtypes[k]] for k in (0, -1))
        """What is multiplied, and what the result is stored as: of these maxima are found."""
        (taps, self.step, self.above), (self.phases, self.aside, self.before) = kernel["pool"]
        self.carried = taps > self.step
        """Whether windows below each other have a row in common: the last one of each."""
        self.rows = taps - self.carried
        """Of the stem, in a step."""
        self.row = kernel["lines"] * kernel["line"]
        """From a row of the stem to the next one's pixels."""
        self.columns: int = kernel["tile"][1]
        self.beside = kernel["pooled"][1]
        self.places = self.s.product_of((kernel["images"][0], self.beside))
        self.vectors = -(-kernel["run"] // VECTOR)
        """Of a tap's run."""

    def write(self) -> str:
        s, k = self.s, self.k
        for scalar in range(k["scalars"]):
            s.line(f"s{scalar} = s{scalar}.to(tl.int32)")
        self.load_weights()
        s.wait()
        self.find_pixels()
        if self.carried:
            self.write_first_row()
        end = f"tl.minimum(first + {k['rows_per_program']}, {k['pooled'][0]})"
        with s.block(f"for y in range(first, {end}):"):
            self.write_step()
        return s.text()

    def larger(self, a: str, b: str) -> str:
        """The larger one, or what is not a number; the language makes it float32 of some types."""
        return f"tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL).to({self.kind})"

    def load_weights(self) -> None:
        """Which strip is the program's, and its filters."""
        s, k = self.s, self.k
        parts, across = -(-k["pooled"][0] // k["rows_per_program"]), k["filters"] // self.columns
        s.line("program = tl.program_id(0)")
        s.line(f"strip = program // {across}")
        s.line(f"first = strip % {parts} * {k['rows_per_program']}")
        s.line(f"tile = strip // {parts}")
        s.line(f"column = program % {across} * {self.columns} + tl.arange(0, {self.columns})")
        s.line(f"b_columns = p1 + column * {k['depth']}")
        for first, count in group_concurrent_steps(k["depth"] // FRAGMENT):
            s.line(f"k = {first * FRAGMENT} + tl.arange(0, {count * FRAGMENT})")
            s.line(f"b{first} = tl.load(b_columns[None, :] + k[:, None])")
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
        """Where the tile's rows lie: in the order in which they are read, and as they are."""
        s, (_, image) = self.s, self.k["images"]
        wide = [
            ".to(tl.int64)" if uses_int64_offsets else ""
            for uses_int64_offsets in self.k["uses_int64_offsets"]
        ]
        s.line(f"q = tl.arange(0, {ROWS})")
        s.line(f"q = {FRAGMENT_ROW}")
        s.line(f"place = tl.minimum(tile * {ROWS} + q, {self.places} - 1)")
        s.line(f"x = place % {self.beside} * {self.aside} - {self.before}")
        s.line(f"images = p0 + {s.sum_of((f'(place // {self.beside}){wide[0]}', image))}")
        n, _, across = self.k["strides"]
        s.line(f"q = tl.arange(0, {ROWS})")
        s.line(f"place = tile * {ROWS} + q")
        s.line(f"beside = place % {self.beside}")
        s.line(f"out = {s.sum_of((f'(place // {self.beside}){wide[1]}', n), ('beside', across))}")
        self.masks = not divides(ROWS, self.places)
        if self.masks:
            s.line(f"is_own = place < {self.places}")

    # ---- rows of the stem

    def write_first_row(self) -> None:
        """What the first windows have of the stem's row above."""
        s = self.s
        s.line(f"top = first * {self.step * self.row}")
        there = f"first * {self.step} >= {self.above}" if self.above else None
        self.gather([there], {"low": "least"})
        s.line("above = low")

    def write_step(self) -> None:
        """A row of the result."""
        s = self.s
        s.line(f"top = (y * {self.step} + {int(self.carried)}) * {self.row}")
        s.line(f"stem = y * {self.step} + {int(self.carried) - self.above}")
        rows = [self.outside(row) for row in range(self.rows)]
        if self.carried:
            self.gather(rows, {"best": "above", "low": "least"})
            s.line("above = low")
        else:
            self.gather(rows, {"best": "least"})
        if self.k["has_relu"]:
            s.line(f"best = {self.larger('best', '0.0')}")
        self.store()

    def gather(self, rows: Sequence[str | None], names: Mapping[str, str]) -> None:
        """The largest of each window's part of some rows, and of the last of them.

        Args:
            rows: when each is there.
            names: of all rows ``best``, of the last ``low``; with what each begins.
        """
        s = self.s
        for name, value in names.items():
            s.line(f"{name} = {value}")

        def merge(row: int) -> None:
            for name in names:
                if name != "low" or row == len(rows) - 1:
                    s.line(f"{name} = {self.larger(name, f'v{row}')}")

        with s.block(f"for phase in range(0, {self.phases}):"):
            self.multiply(rows, merge)

    def outside(self, row: int) -> str | None:
        """When a row of a step is there, or None: always."""
        height, last = self.k["stem"][0], self.k["pooled"][0] - 1
        first = row + int(self.carried) - self.above
        low = f"stem + {row} >= 0" if first < 0 else ""
        high = f"stem + {row} < {height}" if last * self.step + first >= height else ""
        return both(low, high) or None

    def store(self) -> None:
        s, (_, down, _), last = self.s, self.k["strides"], len(self.s.dtypes) - 1
        ok = ", mask=is_own[:, None]" if self.masks else ""
        place = s.join("out", s.sum_of(("y", down)))
        at = f"(p{last} + ({place}))[:, None] + column[None, :]"
        s.line(f"tl.store({at}, best{ok})")

    # ---- the stem

    def multiply(self, rows: Sequence[str | None], merge: Callable[[int], None]) -> None:
        """What the stem makes of some rows at a phase.

        Args:
            rows: when each of them is there.
            merge: takes one.
        """
        s, k = self.s, self.k
        at, width = "x + phase", k["stem"][1]
        # Behind an edge is read what lies at it: that counts in the same windows.
        at = f"tl.maximum({at}, 0)" if self.before > 0 else at
        reach = (self.beside - 1) * self.aside + self.phases - self.before
        at = f"tl.minimum({at}, {width - 1})" if reach > width else at
        s.line(f"pixels = images + ({at}) * {k['pixel']}")
        loaded: dict[tuple[int, int], str] = {}
        later = [piece for row in range(1, len(rows)) for piece in self.fragments_of(row)]
        for row, is_there in enumerate(rows):
            own = [self.load(piece, loaded) for piece in self.fragments_of(row)]
            s.line(f"acc = tl.zeros([{ROWS}, {self.columns}], tl.float32)")
            for first, count in group_concurrent_steps(len(own)):
                s.line(f"acc = tl.dot({joined(own[first : first + count], ROWS)}, b{first}, acc)")
                # Once some registers are free again.
                for piece in later:
                    self.load(piece, loaded)
            bias = " + tl.load(p2 + column).to(tl.float32)[None, :]" if k["bias"] else ""
            s.line(f"v{row} = (acc{bias}).to({self.kind})")
            if is_there:
                s.line(f"v{row} = tl.where({is_there}, v{row}, least)")
            merge(row)

    def fragments_of(self, row: int) -> list[tuple[int, int]]:
        """A window's fragments: where in a strip's vectors each begins, and how many it has."""
        first, count = row * self.k["lines"] * self.vectors, self.k["taps"] * self.vectors
        each = FRAGMENT // VECTOR
        return [(first + at, min(each, count - at)) for at in range(0, count, each)]

    def load(self, piece: tuple[int, int], loaded: dict[tuple[int, int], str]) -> str:
        """Load a fragment in the order in which tensor cores take it, if that was not done."""
        if piece in loaded:
            return loaded[piece]
        s, (first, count) = self.s, piece
        start, line = first % self.vectors, first // self.vectors * self.k["line"]
        name = loaded[piece] = f"a{len(loaded)}"
        there = sanitize_name(f"(vector < {count})[None, :]") if count * VECTOR < FRAGMENT else ""
        s.line(f"a = tl.load(pixels[:, None] + (top + {line}) + offset{start}[None, :]{there})")
        if self.k["run"] % VECTOR:
            how = f"dtype={self.factor}, is_pure=True, pack=2"
            s.line(
                f'a = tl.inline_asm_elementwise("{MASK_PTX}", "=r,r,r", [a, keep{start}], {how})'
            )
        s.line(f"{name} = {taken('a', ROWS)}")
        return name
