"""What all kernels over tiles of a matrix have in common: where a tile lies, and its epilogue.

The rows of the matrix are places (images, pixels), its columns channels. How the elements of a tile
are summed is what its kernels differ in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends.cuda._elementwise import literal, write_stages
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, Source
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.engine import Json, KernelSpec

_MAX_BITS: Final = 31
"""Taps that a word tells apart, without its sign."""


class TileWriter(ABC):
    """Writes the kernel of one spec; see `ImplicitGemmKernel` for what that says."""

    def __init__(self, kernel: KernelSpec) -> None:
        """Read the spec."""
        self.k = kernel
        self.s = Source(kernel)
        self.last = len(self.s.dtypes) - 1
        self.factors: int = kernel["factors"]
        self.tile = cast("tuple[int, int, int]", tuple(kernel["tile"]))
        self.stack: Any = kernel["stack"]
        self.rows: Any = kernel["rows"]
        self.windows: Any = kernel["windows"]
        self.columns: Any = kernel["columns"]
        self.taps = prod(w[0] for w in self.windows)
        self.row_count = self.s.product_of(axis[0] for axis in self.rows)
        self.column_count = self.s.extent(self.columns[0])
        self.across = self.s.divide_up(self.column_count, self.tile[1])
        self.down = self.s.divide_up(self.row_count, self.tile[0])
        self.row_ok = "" if divides(self.tile[0], self.row_count) else "row_ok"
        self.column_ok = "" if divides(self.tile[1], self.column_count) else "column_ok"
        self.row_names = [f"r{n}" for n in range(len(self.rows))]
        self.stack_names = [f"g{n}" for n in range(len(self.stack))]
        self.column = "column"
        """What the columns' numbers are called."""
        self.suffix = ""
        """Ends the names of variables that hold extra operands."""
        self.loaded: dict[int, str] = {}
        self.order = f"tl.arange(0, {self.tile[0]})"
        """Which of a tile's places its rows are."""

    @abstractmethod
    def sum(self) -> None:
        """Write what makes ``acc``, a tile of float32, of the factors."""

    def prepare(self) -> None:  # noqa: B027  (not every sum has any)
        """Write what may be done before earlier launches have ended."""

    def write(self) -> str:
        """The kernel's text."""
        extras = self.last - self.factors
        self.find_tile()
        self.prepare()
        self.read_weights(extras)
        self.s.wait()
        for extra in range(extras if self.k["prefetches_epilogue"] else 0):
            self.read(extra)
        self.sum()
        self.finish()
        return self.s.text()

    # ---- where the tile lies

    def find_tile(self) -> None:
        """Coordinates of the program's tile, and what every tap starts from."""
        s, across, down, split_k = self.s, self.across, self.down, self.k["split_k"]
        self.find_scalars()
        s.line(f"tile = {s.program}")
        if split_k > 1:
            s.line(f"piece = tile % {split_k}")
            s.line(f"tile = tile // {split_k}")
        s.line(f"across = tile % {across}")
        if self.stack:
            s.line(f"down = (tile // {across}) % {down}")
            s.line(f"matrix = tile // ({across} * {down})")
            s.unravel("matrix", [axis[0] for axis in self.stack], self.stack_names)
        else:
            s.line(f"down = tile // {across}")
        self.find_columns()
        self.find_rows()

    def find_scalars(self) -> None:
        for scalar in range(self.k["scalars"]):
            self.s.line(f"s{scalar} = s{scalar}.to(tl.int32)")

    def find_columns(self) -> None:
        s, bn = self.s, self.tile[1]
        s.line(f"column = across * {bn} + tl.arange(0, {bn})")
        if self.column_ok:
            s.line(f"column_ok = column < {self.column_count}")

    def find_rows(self) -> None:
        s, bm = self.s, self.tile[0]
        s.line(f"row = down * {bm} + {self.order}")
        if self.row_ok:
            s.line(f"row_ok = row < {self.row_count}")
            if self.k["clamps_edges"]:
                s.line(f"row = tl.minimum(row, {self.row_count} - 1)")
        s.unravel("row", [axis[0] for axis in self.rows], self.row_names)
        self.find_taps()

    def find_taps(self) -> None:
        """For each place, which taps along each axis lie inside of the image, as bits."""
        s = self.s
        for name, axis in zip(self.row_names, self.rows, strict=True):
            number = axis[-1]
            if number < 0:
                continue
            taps, _, move, dilation, before, extent = self.windows[number]
            s.line(f"at{number} = {name} * {move} - {before}")
            if taps > _MAX_BITS:
                continue
            bits = " | ".join(
                f"({self.inside(f'at{number}', tap * dilation, extent)}.to(tl.int32) << {tap})"
                for tap in range(taps)
            )
            s.line(f"inside{number} = {bits}")

    def inside(self, place: str, offset: Any, extent: Json) -> str:
        at = place if offset == 0 else f"({place} + {offset})"
        return f"(({at} >= 0) & ({at} < {self.s.extent(extent)}))"

    def row_offset(self, operand: int) -> str:
        """The part of an operand's offset that rows (and the stack) decide, a vector."""
        s, uses_int64_offsets = self.s, self.k["uses_int64_offsets"][operand]
        if operand == self.last and self.k["split_k"] > 1:
            part = "piece.to(tl.int64)" if uses_int64_offsets else "piece"
            split_k = s.sum_of((part, self.k["split_k_stride"]))
        else:
            split_k = ""
        rows = s.offset(
            self.row_names,
            self.rows,
            operand,
            uses_int64_offsets=uses_int64_offsets and not self.stack,
        )
        rows = rows if rows != "0" else "row * 0"
        if not self.stack:
            return s.join(split_k, rows)
        return s.join(
            split_k,
            s.offset(self.stack_names, self.stack, operand, uses_int64_offsets=uses_int64_offsets),
            rows,
        )

    def column_offset(self, operand: int) -> str:
        """The part that columns decide; the second factor's has the stack's, too."""
        s = self.s
        text = s.sum_of((self.column, self.columns[1 + operand]))
        text = text if text != "0" else f"{self.column} * 0"
        if operand == 1 and self.stack:
            uses_int64_offsets = self.k["uses_int64_offsets"][operand]
            return s.join(
                s.offset(self.stack_names, self.stack, 1, uses_int64_offsets=uses_int64_offsets),
                text,
            )
        return text

    def locate_tap(self, tap: str, spread: str) -> tuple[str, str]:
        """Which places a tap finds inside of the image, and its offset.

        By element with ``spread``, where the tap is a vector.
        """
        s = self.s
        names = [f"t{n}" for n in range(len(self.windows))]
        s.unravel(tap, [w[0] for w in self.windows], names)
        checked = {axis[-1] for axis in self.rows}
        terms: list[tuple[str, Json]] = []
        bits: list[str] = []
        conditions: list[str] = []
        for number, (name, window) in enumerate(zip(names, self.windows, strict=True)):
            taps, stride, _, dilation, _, extent = window
            terms.append((name, stride))
            turned = f"{name}[None, :]" if spread else name
            if number in checked and taps <= _MAX_BITS:
                bits.append(f"(inside{number}{spread} >> {turned})")
            elif number in checked:
                moved = f"{turned} * {dilation}"
                conditions.append(self.inside(f"at{number}{spread}", moved, extent))
        if bits:
            conditions.append(f"(({' & '.join(bits)} & 1) != 0)")
        return both(*conditions), s.sum_of(*terms)

    # ---- epilogue

    def finish(self) -> None:
        """Write the epilogue of the sums, and the result."""
        self.store(self.last, self.end(self.k["stages"], bias=self.k["bias"]))

    def end(self, stages: Json, *, bias: bool) -> str:
        """What the epilogue makes of ``acc``; the bias is the first extra operand."""
        line, alpha, scale = self.s.line, self.k["alpha"], self.k["bias_scale"]
        if alpha != 1.0:
            line(f"acc = acc * {literal(alpha)}")
        if bias:
            text = self.read(0) + (f" * {literal(scale)}" if scale != 1.0 else "")
            line(f"acc = acc + {text}")
        return write_stages(line, stages, self.read, ["acc"])

    def store(self, operand: int, value: str) -> None:
        """Write a tile back in the type of its memory."""
        kind = LANGUAGE_TYPES[self.s.dtypes[operand]]
        at, mask = self.place(operand)
        self.s.line(f"tl.store({at}, ({value}).to({kind}){f', mask={mask}' if mask else ''})")

    def read(self, extra: int) -> str:
        """The variable of an extra operand, loaded when it is first asked for."""
        operand = self.factors + extra
        if operand not in self.loaded:
            s = self.s
            at, mask = self.place(operand)
            text = f"tl.load({at}{sanitize_name(mask)})"
            if s.dtypes[operand] in {DType.FLOAT16, DType.BFLOAT16}:
                text += ".to(tl.float32)"
            name = self.loaded[operand] = f"x{operand}{self.suffix}"
            s.line(f"{name} = {text}{self.spread(operand)}")
        return self.loaded[operand]

    def read_weights(self, extras: int) -> None:
        """Read those of the extra operands that need not be waited for: weights all rows share."""
        for extra in range(extras):
            operand = self.factors + extra
            if self.k["constants"][operand] and self.repeats(operand)[0]:
                self.read(extra)

    def repeats(self, operand: int) -> tuple[bool, bool]:
        """Whether all rows, and all columns, have the same elements of an operand."""
        rows = all(axis[1 + operand] == 0 for axis in (*self.rows, *self.stack))
        return rows, self.columns[1 + operand] == 0

    def spread(self, operand: int) -> str:
        """How an operand of fewer elements is made one of the whole tile."""
        return {(True, False): "[None, :]", (False, True): "[:, None]"}.get(
            self.repeats(operand), ""
        )

    def place(self, operand: int) -> tuple[str, str]:
        """Addresses of an operand's elements, those that differ, and which of them are there."""
        rows, columns = self.repeats(operand)
        if rows and columns and operand != self.last:
            return f"p{operand}", ""
        if rows and operand != self.last:
            return f"p{operand} + ({self.column_offset(operand)})", self.column_ok
        if columns and operand != self.last:
            return f"p{operand} + ({self.row_offset(operand)})", self.row_ok
        down = f"(p{operand} + ({self.row_offset(operand)}))[:, None]"
        mask = both(across(self.row_ok, 0), across(self.column_ok, 1))
        return f"{down} + ({self.column_offset(operand)})[None, :]", mask


def divides(size: int, extent: str | int) -> bool:
    """Whether tiles of this size surely end where the extent does."""
    return str(extent).isdigit() and int(extent) % size == 0


def across(vector: str, axis: int) -> str:
    """A condition on rows (0) or columns (1) as one on the tile; none stays none."""
    return vector and f"({vector})[{':, None' if axis == 0 else 'None, :'}]"


def both(*conditions: str) -> str:
    """All of the conditions that there are."""
    return " & ".join(c if c.startswith("(") else f"({c})" for c in conditions if c)


def sanitize_name(condition: str) -> str:
    """The arguments of a load where a condition holds; zeros elsewhere."""
    return f", mask={condition}, other=0.0" if condition else ""
