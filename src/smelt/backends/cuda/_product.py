"""The kernel under convolution and matrix product: tiles of the result, summed on tensor cores.

The result is a matrix: its *rows* are places (images, pixels), its *columns* channels of a group.
A program does one tile; it walks the taps of the window and, in each, the *run* (the channels of
the input), and gathers both factors with strides, so nothing is unfolded. Places outside of the
image are masked. Short runs (an image's three colours) are walked together with the taps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends.cuda._elementwise import literal, write_stages
from smelt.backends.cuda._source import Source
from smelt.engine import KernelSpec, as_json, parameters
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.engine import Json

_LEAST_RUN: Final = 16
"""Runs from this length on are walked tap by tap."""


@dataclass(frozen=True, slots=True)
class ProductKernel:
    """Everything that decides the text. Extents and strides may be ``("arg", k)``.

    Strides of an axis are the first factor's, the second factor's, then each extra operand's, then
    the result's.
    """

    operands: tuple[tuple[str, Json], ...]
    """What `operand_parameters` says."""
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
    run_strides: tuple[Json, Json]
    """Of the first and the second factor."""
    tap_stride: Json
    """Of the second factor, from tap to tap."""
    tile: tuple[int, int, int]
    """Rows, columns and steps of the sum."""
    bias: bool
    """Whether the first extra operand is added to sums in their own precision, before the
    epilogue."""
    bias_scale: float
    alpha: float
    stages: Json
    precision: str
    """How float32 is multiplied: "ieee" or "tf32"."""
    warps: int
    pipeline: int

    def spec(self, family: str) -> KernelSpec:
        """The kernel as data."""
        fields = {
            f.name: as_json(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.name != "operands"
        }
        return KernelSpec(family, parameters(**fields, **dict(self.operands)))


def write_product(kernel: KernelSpec) -> str:
    """The text of a product's kernel.

    Operands: first factor, second factor, extra operands, result.
    """
    return _Writer(kernel).write()


class _Writer:
    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.extras = len(self.s.dtypes) - 3
        self.tile = cast("tuple[int, int, int]", tuple(kernel["tile"]))
        self.stack: Any = kernel["stack"]
        self.rows: Any = kernel["rows"]
        self.windows: Any = kernel["windows"]
        self.columns: Any = kernel["columns"]
        places: Json = 1
        for extent, *_ in self.rows:
            places = places * extent if isinstance(places, int) and isinstance(extent, int) else ""
        self.row_ok = "" if _divides(self.tile[0], places) else "row_ok"
        self.column_ok = "" if _divides(self.tile[1], self.columns[0]) else "column_ok"
        self.row_names = [f"r{n}" for n in range(len(self.rows))]
        self.stack_names = [f"g{n}" for n in range(len(self.stack))]

    def write(self) -> str:
        s, (bm, bn, _) = self.s, self.tile
        self.find_tile()
        s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        if isinstance(self.k["run"], int) and self.k["run"] < _LEAST_RUN and self.windows:
            self.sum_gathered()
        else:
            self.sum_by_tap()
        self.finish()
        return s.text()

    def find_tile(self) -> None:
        """Coordinates of the program's tile, and what every tap starts from."""
        s, (bm, bn, bk) = self.s, self.tile
        rows = " * ".join(s.extent(axis[0]) for axis in self.rows) or "1"
        s.line(f"row_count = {rows}")
        s.line(f"tiles_across = {_cdiv(s.extent(self.columns[0]), bn)}")
        s.line(f"tiles_down = {_cdiv('row_count', bm)}")
        s.line("tile = tl.program_id(0)")
        s.line("across = tile % tiles_across")
        s.line("down = (tile // tiles_across) % tiles_down")
        if self.stack:
            s.line("matrix = tile // (tiles_across * tiles_down)")
            s.unravel("matrix", [axis[0] for axis in self.stack], self.stack_names)
        s.line(f"row = down * {bm} + tl.arange(0, {bm})")
        s.line(f"column = across * {bn} + tl.arange(0, {bn})")
        s.line(f"step = tl.arange(0, {bk})")
        if self.row_ok:
            s.line("row_ok = row < row_count")
        if self.column_ok:
            s.line(f"column_ok = column < {s.extent(self.columns[0])}")
        s.unravel("row", [axis[0] for axis in self.rows], self.row_names)
        for name, axis in zip(self.row_names, self.rows, strict=True):
            if axis[-1] >= 0:
                _, _, move, _, before, _ = self.windows[axis[-1]]
                s.line(f"at{axis[-1]} = {name} * {move} - {before}")
        s.line(f"a_rows = {self.row_offset(0)} - {s.extent(self.k['start'])}")
        s.line(f"b_columns = {self.column_offset(1)}")

    def row_offset(self, operand: int) -> str:
        """The part of an operand's offset that rows (and the stack) decide, a vector."""
        matrix = self.s.offset(self.stack_names, self.stack, operand)
        return f"{matrix} + row * 0 + {self.s.offset(self.row_names, self.rows, operand)}"

    def column_offset(self, operand: int) -> str:
        """The part that columns decide; the second factor's has the stack's, too."""
        text = f"column * 0 + {self.s.sum_of(('column', self.columns[1 + operand]))}"
        matrix = self.s.offset(self.stack_names, self.stack, 1)
        return f"{matrix} + {text}" if operand == 1 else text

    # ---- sums

    def sum_by_tap(self) -> None:
        """One step of the loop is a stretch of the run within one tap."""
        s, bk = self.s, self.tile[2]
        run, taps = s.extent(self.k["run"]), self.tap_count()
        stretches = _cdiv(run, bk)
        with s.block(f"for number in range(0, {taps} * ({stretches})):"):
            s.line(f"tap = number // ({stretches})")
            s.line(f"c = (number % ({stretches})) * {bk} + step")
            ok, offset = self.place_tap([self.row_ok], "a_rows", "")
            c_ok = "" if _divides(bk, self.k["run"]) else f"(c < {run})"
            a_run, b_run = self.k["run_strides"]
            a_at = f"({offset})[:, None] + ({s.sum_of(('c', a_run))})[None, :]"
            b_steps = s.sum_of(("tap", self.k["tap_stride"]), ("c", b_run))
            b_at = f"({b_steps} + step * 0)[:, None] + b_columns[None, :]"
            self.multiply(
                a_at, _both(_across(ok, 0), _across(c_ok, 1)),
                b_at, _both(_across(self.column_ok, 1), _across(c_ok, 0)),
            )  # fmt: skip

    def sum_gathered(self) -> None:
        """Taps and the run are one axis; each step finds its own tap."""
        s, bk, run = self.s, self.tile[2], self.k["run"]
        total = self.tap_count() * run
        with s.block(f"for number in range(0, {-(-total // bk)}):"):
            s.line(f"k = number * {bk} + step")
            s.line(f"c = k % {run}")
            s.line(f"tap = k // {run}")
            s.line(f"k_ok = k < {total}")
            rows = _across(self.row_ok, 0)
            ok, offset = self.place_tap([rows], "a_rows[:, None]", "[:, None]")
            a_run, b_run = self.k["run_strides"]
            a_at = f"{offset} + ({s.sum_of(('c', a_run))})[None, :]"
            b_steps = s.sum_of(("tap", self.k["tap_stride"]), ("c", b_run))
            b_at = f"({b_steps})[:, None] + b_columns[None, :]"
            self.multiply(
                a_at, _both(ok, "k_ok[None, :]"),
                b_at, _both(_across(self.column_ok, 1), "k_ok[:, None]"),
            )  # fmt: skip

    def tap_count(self) -> int:
        count = 1
        for taps, *_ in self.windows:
            count *= taps
        return count

    def place_tap(self, conditions: list[str], offset: str, spread: str) -> tuple[str, str]:
        """Which places a tap finds inside the image, and where; by element with ``spread``."""
        s = self.s
        names = [f"t{n}" for n in range(len(self.windows))]
        s.unravel("tap", [w[0] for w in self.windows], names)
        checked = {axis[-1] for axis in self.rows}
        for number, (name, window) in enumerate(zip(names, self.windows, strict=True)):
            _, stride, _, dilation, _, extent = window
            turned = f"{name}[None, :]" if spread else name
            offset += f" + {turned} * {s.extent(stride)}"
            if number in checked:
                place = f"(at{number}{spread} + {turned} * {dilation})"
                conditions.append(f"({place} >= 0) & ({place} < {s.extent(extent)})")
        return _both(*conditions), offset

    def multiply(self, a_at: str, a_mask: str, b_at: str, b_mask: str) -> None:
        s = self.s
        s.line(f"a = tl.load(p0 + ({a_at}){_masked(a_mask)})")
        s.line(f"b = tl.load(p1 + ({b_at}){_masked(b_mask)})")
        is_single = s.dtypes[0] is DType.FLOAT32
        how = f', input_precision="{self.k["precision"]}"' if is_single else ""
        s.line(f"acc = tl.dot(a, b, acc{how})")

    # ---- epilogue

    def finish(self) -> None:
        s = self.s
        ok = _both(_across(self.row_ok, 0), _across(self.column_ok, 1)) or None
        if self.k["alpha"] != 1.0:
            s.line(f"acc = acc * {literal(self.k['alpha'])}")
        read = s.reading(2, self.place, ok)
        if self.k["bias"]:
            scale = self.k["bias_scale"]
            s.line(f"acc = acc + {read(0)}" + (f" * {literal(scale)}" if scale != 1.0 else ""))
        result = write_stages(s.line, self.k["stages"], read, ["acc"])
        last = 2 + self.extras
        s.store(last, self.place(last), result, ok)

    def place(self, operand: int) -> str:
        """Offsets of an operand for every element of the tile."""
        return f"({self.row_offset(operand)})[:, None] + ({self.column_offset(operand)})[None, :]"


def _divides(size: int, extent: Any) -> bool:
    """Whether tiles of this size surely end where the extent does."""
    return isinstance(extent, int) and extent % size == 0


def _across(vector: str, axis: int) -> str:
    """A condition on rows (0) or columns (1) as one on the tile; none stays none."""
    return vector and f"({vector})[{':, None' if axis == 0 else 'None, :'}]"


def _both(*conditions: str) -> str:
    return " & ".join(c if c.startswith("(") else f"({c})" for c in conditions if c)


def _masked(condition: str) -> str:
    return f", mask={condition}, other=0.0" if condition else ""


def _cdiv(value: str, by: int) -> str:
    return str(-(-int(value) // by)) if value.isdigit() else f"({value} + {by - 1}) // {by}"
