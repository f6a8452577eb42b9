"""Vector loads and stores, element conversion and index arithmetic shared by the families.

Transposing copies: square tiles are transposed in registers.

Loads and stores are then both contiguous vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type
from smelt.backends.cpu._emit import LLVM_TYPES, Reg, lane_count, type_suffix, vector_type
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter, Int
    from smelt.engine import Json


def load(e: Emitter, kind: str, at: Reg, mask: Reg | None, dtype: DType = DType.FLOAT32) -> Reg:
    """Load a register of type ``kind`` from elements stored as ``dtype``.

    With a mask, only the lanes whose bit is set are read; the others are 0.
    """
    stored = vector_type(LLVM_TYPES[dtype], lane_count(kind))
    value = e.load(stored, at) if mask is None else e.load_masked(stored, at, mask)
    return to_compute_type(e, value, dtype)


def load_channels(
    e: Emitter, kind: str, at: Reg, stride: Int, mask: Reg | None, dtype: DType = DType.FLOAT32
) -> Reg:
    """Load a vector whose elements lie ``stride`` elements apart in memory.

    A stride of 0 broadcasts one element to every lane, a stride of 1 is a contiguous load, and any
    other stride is a gather. ``kind`` is the register type, ``dtype`` the type in memory.
    """
    lanes, element = lane_count(kind), LLVM_TYPES[dtype]
    if stride == 0:
        return e.splat(to_compute_type(e, e.load(element, at), dtype), lanes)
    if stride == 1:
        return load(e, kind, at, mask, dtype)
    lane_numbers = ", ".join(f"i64 {i}" for i in range(lanes))
    step = e.splat(e.i64(stride), lanes)
    offsets = e.emit(step.type, f"mul {step}, <{lane_numbers}>")
    addresses = e.emit(f"<{lanes} x ptr>", f"getelementptr {element}, {at}, {offsets}")
    gather_mask = mask or e.constant(1, f"<{lanes} x i1>")
    stored = vector_type(element, lanes)
    function = f"llvm.masked.gather.{type_suffix(stored)}.v{lanes}p0"
    align, fill = Reg(str(dtype.size_bytes), "i32"), Reg("zeroinitializer", stored)
    return to_compute_type(e, e.call(stored, function, addresses, align, gather_mask, fill), dtype)


def store(e: Emitter, value: Reg, at: Reg, mask: Reg | None, dtype: DType = DType.FLOAT32) -> None:
    """Store a vector as elements of ``dtype``.

    With a mask, only the lanes whose bit is set are written.
    """
    stored = to_storage_type(e, value, dtype)
    if mask is None:
        e.store(stored, at)
    else:
        e.store_masked(stored, at, mask)


def balanced(combine: Callable[[Reg, Reg], Reg], terms: Sequence[Reg]) -> Reg:
    """Return all terms combined in a balanced tree."""
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else ()
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [*(combine(a, b) for a, b in pairs), *odd]
    return terms[0]


@dataclass(frozen=True, slots=True)
class ElementConversion:
    """Element types on both sides of a copy: equal types copy bytes, others convert."""

    source: DType
    destination: DType

    @staticmethod
    def words(size: int) -> ElementConversion:
        """Return the conversion that copies elements of ``size`` bytes unchanged."""
        dtype = {d.size_bytes: d for d in (DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)}
        return ElementConversion(dtype[size], dtype[size])

    @staticmethod
    def between(source: DType, destination: DType) -> ElementConversion:
        """Return the conversion from one element type to another.

        Equal types are copied as unsigned words, so the kernel does not depend on the type.
        """
        if source is destination:
            return ElementConversion.words(source.size_bytes)
        return ElementConversion(source, destination)

    @staticmethod
    def from_json(value: Any) -> ElementConversion:
        """Return the conversion that `as_json` wrote."""
        source, destination = value
        return ElementConversion(DType(source), DType(destination))

    def as_json(self) -> Json:
        """Return the conversion as a JSON value for a kernel spec."""
        return (self.source.value, self.destination.value)

    @property
    def widest(self) -> int:
        """Size in bytes of the larger of the two element types."""
        return max(self.sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Size in bytes of a source element and of a destination element."""
        return (self.source.size_bytes, self.destination.size_bytes)

    def load(self, e: Emitter, at: Reg, lanes: int = 1) -> Reg:
        """Load ``lanes`` source elements and return them in the destination's storage type."""
        value = e.load(vector_type(LLVM_TYPES[self.source], lanes), at)
        if self.source is self.destination:
            return value
        return to_storage_type(e, to_compute_type(e, value, self.source), self.destination)


def unravel(e: Emitter, index: Int, extents: Sequence[Json]) -> list[Int]:
    """Return the coordinates of a flat index, last extent fastest.

    Axes of extent 1 take no division: their coordinate is the constant 0.
    """
    extent_values = [e.extent(x) for x in extents]
    coordinates = iter(e.unravel(index, [x for x in extent_values if x != 1]))
    return [0 if x == 1 else next(coordinates) for x in extent_values]


LEAST_TILE: Final = 4
"""Smallest tile side in elements; smaller tiles gain nothing over single elements."""


@dataclass(frozen=True, slots=True)
class AxisRange:
    """A range of an axis, and the remainder of its length if that is known at build time."""

    begin: Int
    end: Int
    left: int | None
    """Elements of the range beyond full tiles, for every tile side that is a power of two up to
    the block; None if unknown."""


@dataclass(frozen=True, slots=True)
class RegisterTransposer:
    """Writes the transposing copy of a rectangle.

    Its columns are contiguous in the source, and its rows in the destination.
    """

    e: Emitter
    source: Reg
    destination: Reg
    source_step: Int
    """Bytes from one row to the next in the source."""
    destination_step: Int
    """Bytes from one column to the next in the destination."""
    conversion: ElementConversion

    def rectangle(self, rows: AxisRange, columns: AxisRange, tile: int) -> None:
        """Write the copy of ``rows`` (contiguous in the destination) by ``columns`` (source).

        Full tiles come first. The remaining edges are copied with tiles of half the side, and
        single elements at last.
        """
        e = self.e
        if tile < LEAST_TILE:
            self._singles(rows, columns)
            return
        inner_rows, outer_rows = self._cut(rows, tile)
        inner_columns, outer_columns = self._cut(columns, tile)
        down_loop = e.loop(rows.begin, inner_rows.end, tile)
        along_loop = e.loop(columns.begin, inner_columns.end, tile)
        with down_loop as down, along_loop as along:
            self._tile(down.index, along.index, tile)
        if outer_columns is not None:
            self.rectangle(inner_rows, outer_columns, tile // 2)
        if outer_rows is not None:
            self.rectangle(outer_rows, columns, tile // 2)

    def _cut(self, span: AxisRange, tile: int) -> tuple[AxisRange, AxisRange | None]:
        """Return the part of a range that full tiles cover, and the rest if there may be any."""
        e = self.e
        covered = e.mul(e.div(e.sub(span.end, span.begin), tile), tile)
        end = e.add(span.begin, covered)
        rest = None if span.left is None else span.left % tile
        inner = AxisRange(span.begin, end, 0)
        return inner, None if rest == 0 else AxisRange(end, span.end, rest)

    def _singles(self, rows: AxisRange, columns: AxisRange) -> None:
        """Write the copy of single elements."""
        e = self.e
        with e.loop(rows.begin, rows.end) as down, e.loop(columns.begin, columns.end) as along:
            addresses = self._addresses(down.index, along.index)
            e.store(self.conversion.load(e, addresses[0]), addresses[1])

    def _addresses(self, row: Reg, column: Reg) -> tuple[Reg, Reg]:
        """Return the addresses of an element in the source and in the destination."""
        e = self.e
        size, result_size = self.conversion.sizes
        read = e.add(e.mul(row, self.source_step), e.mul(column, size))
        write = e.add(e.mul(row, result_size), e.mul(column, self.destination_step))
        return e.at(self.source, read), e.at(self.destination, write)

    def _tile(self, row: Reg, column: Reg, tile: int) -> None:
        """Write the copy of one square tile."""
        e = self.e
        read, write = self._addresses(row, column)
        steps = [e.at(read, e.mul(self.source_step, k)) for k in range(tile)]
        lines = [self.conversion.load(e, step, tile) for step in steps]
        for k, line in enumerate(transpose_registers(e, lines)):
            e.store(line, e.at(write, e.mul(self.destination_step, k)))


def transpose_registers(e: Emitter, lines: Sequence[Reg]) -> list[Reg]:
    """Return the columns of a square matrix whose rows are the given vectors.

    Each stage exchanges lanes between vectors whose numbers differ in one bit: those lanes whose
    number differs from the vector's own in that bit.
    """
    tile = len(lines)
    vectors = list(lines)
    bit = 1
    while bit < tile:
        for low in (k for k in range(tile) if not k & bit):
            high = low | bit
            first = [lane if not lane & bit else tile + lane - bit for lane in range(tile)]
            second = [lane + bit if not lane & bit else tile + lane for lane in range(tile)]
            pair = vectors[low], vectors[high]
            vectors[low], vectors[high] = (e.shuffle(*pair, order) for order in (first, second))
        bit *= 2
    return vectors
