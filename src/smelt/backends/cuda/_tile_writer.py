"""Base class of kernels over tiles of a matrix: tile coordinates, operand addresses, epilogue.

The rows of the matrix are output positions (images, pixels), its columns channels. Subclasses
differ in how the elements of a tile are summed.
"""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cuda._elementwise import literal, write_stages
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, KernelWriter
from smelt.backends.cuda._product_specs import ImplicitGemmKernel
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.engine import Json, KernelSpec

_MAX_BITS: Final = 31
"""Maximum number of taps along an axis whose validity fits a word of bits, without its sign."""


class TileWriter(KernelWriter):
    """Base of the writers of products, which compute tiles of the result."""

    k: ImplicitGemmKernel

    def __init__(self, kernel: KernelSpec) -> None:
        """Read the spec."""
        super().__init__(kernel)
        self.k = ImplicitGemmKernel.of(kernel)
        self.first_extra: int = self.k.factors
        """Number of the first epilogue operand: those before it are summed."""
        self.tile = self.k.tile
        self.batch_axes: Any = self.k.stack
        """Batch axes: (extent, stride of each operand ...)."""
        self.rows: Any = self.k.rows
        self.windows: Any = self.k.windows
        self.columns: Any = self.k.columns
        self.taps = prod(w[0] for w in self.windows)
        self.row_count = self.s.product_of(axis[0] for axis in self.rows)
        self.column_count = self.s.extent(self.columns[0])
        self.column_tiles = self.s.divide_up(self.column_count, self.tile[1])
        """Number of tiles along the columns, as text."""
        self.row_tiles = self.s.divide_up(self.row_count, self.tile[0])
        """Number of tiles along the rows, as text."""
        self.row_ok = "" if divides(self.tile[0], self.row_count) else "row_ok"
        """Variable that says which rows exist; empty if all do."""
        self.column_ok: str = "" if divides(self.tile[1], self.column_count) else "column_ok"
        """Variable that says which columns exist; empty if all do."""
        self.row_names = [f"r{n}" for n in range(len(self.rows))]
        self.batch_names = [f"g{n}" for n in range(len(self.batch_axes))]
        self.column: str = "column"
        """Variable of the column numbers."""
        self.suffix = ""
        """Suffix of the variables that hold epilogue operands."""
        self.loaded: dict[int, str] = {}
        """Variable of each epilogue operand that is loaded."""
        self.row_order = f"tl.arange(0, {self.tile[0]})"
        """Order of the tile's rows, as an expression."""

    @abstractmethod
    def sum(self) -> None:
        """Write the computation of ``acc``, a float32 tile, from the A and B operands."""

    def prepare(self) -> None:
        """Write the statements that may run before earlier launches have ended."""

    @override
    def write(self) -> str:
        extras = self.last - self.first_extra
        self.find_tile()
        self.prepare()
        self.read_weights(extras)
        self.s.wait()
        self.prefetch_epilogue(extras)
        self.sum()
        self.finish()
        return self.s.text()

    # ---- coordinates of the tile

    def find_tile(self) -> None:
        """Write the coordinates of the program's tile, and the numbers of its rows and columns."""
        self.s.narrow_scalars()
        self.find_place()
        self.find_columns(f"across * {self.tile[1]}")
        self.find_rows()

    def find_place(self) -> None:
        """Write the coordinates of the program's tile."""
        s, split_k = self.s, self.k.split_k
        column_tiles, row_tiles = self.column_tiles, self.row_tiles
        s.line(f"tile = {s.program}")
        if split_k > 1:
            s.line(f"piece = tile % {split_k}")
            s.line(f"tile = tile // {split_k}")
        s.line(f"across = tile % {column_tiles}")
        if self.batch_axes:
            s.line(f"down = (tile // {column_tiles}) % {row_tiles}")
            s.line(f"matrix = tile // ({column_tiles} * {row_tiles})")
            s.unravel("matrix", [axis[0] for axis in self.batch_axes], self.batch_names)
        else:
            s.line(f"down = tile // {column_tiles}")

    def find_columns(self, first: str) -> None:
        """Write the numbers of the tile's columns, from the first one on."""
        s = self.s
        s.line(f"{self.column} = {s.join(first, f'tl.arange(0, {self.tile[1]})')}")
        if self.column_ok:
            s.line(f"{self.column_ok} = {self.column} < {self.column_count}")

    def find_rows(self) -> None:
        """Write the numbers and coordinates of the tile's rows."""
        s, bm = self.s, self.tile[0]
        s.line(f"row = down * {bm} + {self.row_order}")
        if self.row_ok:
            s.line(f"row_ok = row < {self.row_count}")
            if self.k.clamps_edges:
                s.line(f"row = tl.minimum(row, {self.row_count} - 1)")
        s.unravel("row", [axis[0] for axis in self.rows], self.row_names)
        self.find_taps()

    def find_taps(self) -> None:
        """Write, for each row and axis, bits for the taps that lie inside the image."""
        s = self.s
        for name, axis in zip(self.row_names, self.rows, strict=True):
            number = axis[-1]
            if number < 0:
                continue
            taps, _, window_stride, dilation, before, extent = self.windows[number]
            s.line(f"at{number} = {name} * {window_stride} - {before}")
            if taps > _MAX_BITS:
                continue
            bits = " | ".join(
                f"({self.is_inside(f'at{number}', tap * dilation, extent)}.to(tl.int32) << {tap})"
                for tap in range(taps)
            )
            s.line(f"inside{number} = {bits}")

    def is_inside(self, coordinate: str, offset: Any, extent: Json) -> str:
        """Return the condition that a coordinate plus an offset lies inside the image."""
        at = coordinate if offset == 0 else f"({coordinate} + {offset})"
        return f"(({at} >= 0) & ({at} < {self.s.extent(extent)}))"

    def row_offset(self, operand: int) -> str:
        """Return the part of an operand's offset that depends on rows and batch axes, a vector."""
        s, uses_int64_offsets = self.s, self.k.uses_int64_offsets[operand]
        partial_offset = ""
        if operand == self.last and self.k.split_k > 1:
            partial = "piece.to(tl.int64)" if uses_int64_offsets else "piece"
            partial_offset = s.sum_of((partial, self.k.split_k_stride))
        is_wide = uses_int64_offsets and not self.batch_axes
        rows = s.offset(self.row_names, self.rows, operand, uses_int64_offsets=is_wide)
        rows = rows if rows != "0" else "row * 0"
        return s.join(partial_offset, self.batch_offset(operand), rows)

    def batch_offset(self, operand: int) -> str:
        """Return the part of an operand's offset that depends on batch axes."""
        is_wide = self.k.uses_int64_offsets[operand]
        return self.s.offset(self.batch_names, self.batch_axes, operand, uses_int64_offsets=is_wide)

    def column_offset(self, operand: int) -> str:
        """Return the part of an operand's offset that depends on columns."""
        text = self.s.sum_of((self.column, self.columns[1 + operand]))
        return text if text != "0" else f"{self.column} * 0"

    def locate_tap(self, tap: str, spread: str) -> tuple[str, str]:
        """Return the condition that a tap lies inside the image, and the tap's offset in A.

        ``spread`` is the index suffix of rows if the tap is a vector of its own.
        """
        s = self.s
        names = s.coordinates(tap, self.windows, "t")
        windowed_axes = {axis[-1] for axis in self.rows}
        bits: list[str] = []
        conditions: list[str] = []
        for number, (name, window) in enumerate(zip(names, self.windows, strict=True)):
            taps, _, _, dilation, _, extent = window
            tap_index = f"{name}[None, :]" if spread else name
            if number in windowed_axes and taps <= _MAX_BITS:
                bits.append(f"(inside{number}{spread} >> {tap_index})")
            elif number in windowed_axes:
                tap_offset = f"{tap_index} * {dilation}"
                conditions.append(self.is_inside(f"at{number}{spread}", tap_offset, extent))
        if bits:
            conditions.append(f"(({' & '.join(bits)} & 1) != 0)")
        return all_of(*conditions), s.offset(names, self.windows, 0)

    @property
    def a_row_ok(self) -> str:
        """Variable that masks rows of A; empty if none are masked."""
        return "" if self.k.clamps_edges else self.row_ok

    @property
    def b_column_ok(self) -> str:
        """Condition that masks columns of B in a block; empty if none are masked."""
        return broadcast_condition("" if self.k.clamps_edges else self.column_ok, 1)

    def first_taps(self) -> str:
        """Return the addresses of the rows' first taps in A."""
        start = self.s.extent(self.k.start)
        return f"p0 + ({self.row_offset(0)}{'' if start == '0' else f' - {start}'})"

    # ---- epilogue

    def finish(self) -> None:
        """Write the epilogue and the store of the result."""
        self.store(self.last, self.write_epilogue(self.k.stages, has_bias=self.k.bias))

    def write_epilogue(self, stages: Json, *, has_bias: bool) -> str:
        """Write the epilogue of ``acc`` and return its result; the bias is epilogue operand 0."""
        line, alpha, scale = self.s.line, self.k.alpha, self.k.bias_scale
        if alpha != 1.0:
            line(f"acc = acc * {literal(alpha)}")
        if has_bias:
            text = self.read(0) + (f" * {literal(scale)}" if scale != 1.0 else "")
            line(f"acc = acc + {text}")
        return write_stages(line, stages, self.read, ["acc"])

    def store(self, operand: int, value: str) -> None:
        """Write the store of a tile in the type of its memory."""
        kind = LANGUAGE_TYPES[self.s.dtypes[operand]]
        at, mask = self.addresses(operand)
        self.s.line(f"tl.store({at}, ({value}).to({kind}){f', mask={mask}' if mask else ''})")

    def read(self, extra: int) -> str:
        """Return the variable of an epilogue operand; write its load on first use."""
        operand = self.first_extra + extra
        if operand not in self.loaded:
            s = self.s
            at, mask = self.addresses(operand)
            text = f"tl.load({at}{mask_arguments(mask)})"
            if s.dtypes[operand] in {DType.FLOAT16, DType.BFLOAT16}:
                text += ".to(tl.float32)"
            name = self.loaded[operand] = f"x{operand}{self.suffix}"
            s.line(f"{name} = {text}{self.broadcast_suffix(operand)}")
        return self.loaded[operand]

    def read_weights(self, extras: int) -> None:
        """Load the epilogue operands that are weights shared by all rows: they need no PDL wait."""
        for extra in range(extras):
            operand = self.first_extra + extra
            if self.k.constants[operand] and self.repeats(operand)[0]:
                self.read(extra)

    def prefetch_epilogue(self, extras: int) -> None:
        """Load the epilogue operands before the sum, if the kernel does so."""
        for extra in range(extras if self.k.prefetches_epilogue else 0):
            self.read(extra)

    def repeats(self, operand: int) -> tuple[bool, bool]:
        """Return whether an operand is the same for all rows, and for all columns."""
        rows = all(axis[1 + operand] == 0 for axis in (*self.rows, *self.batch_axes))
        return rows, self.columns[1 + operand] == 0

    def broadcast_suffix(self, operand: int) -> str:
        """Return the index suffix that broadcasts an operand to the tile."""
        suffixes = {(True, False): "[None, :]", (False, True): "[:, None]"}
        return suffixes.get(self.repeats(operand), "")

    def addresses(self, operand: int) -> tuple[str, str]:
        """Return the addresses of an operand's distinct elements, and the mask of existing ones."""
        rows, columns = self.repeats(operand) if operand != self.last else (False, False)
        if rows and columns:
            return f"p{operand}", ""
        if rows:
            return f"p{operand} + ({self.column_offset(operand)})", self.column_ok
        if columns:
            return f"p{operand} + ({self.row_offset(operand)})", self.row_ok
        row_addresses = f"(p{operand} + ({self.row_offset(operand)}))[:, None]"
        mask = all_of(broadcast_condition(self.row_ok, 0), broadcast_condition(self.column_ok, 1))
        return f"{row_addresses} + ({self.column_offset(operand)})[None, :]", mask


def divides(size: int, extent: str | int) -> bool:
    """Return whether a tile size is known to divide an extent."""
    return str(extent).isdigit() and int(extent) % size == 0


def broadcast_condition(vector: str, axis: int) -> str:
    """Return a condition on rows (axis 0) or columns (1) broadcast to the tile, if not empty."""
    return vector and f"({vector})[{':, None' if axis == 0 else 'None, :'}]"


def all_of(*conditions: str) -> str:
    """Return the conjunction of the conditions that are not empty."""
    return " & ".join(c if c.startswith("(") else f"({c})" for c in conditions if c)


def mask_arguments(condition: str) -> str:
    """Return the mask arguments of a load, with zeros where the condition does not hold."""
    return f", mask={condition}, other=0.0" if condition else ""
