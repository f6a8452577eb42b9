"""Transposing copies: square tiles are transposed in registers.

Loads and stores are then both contiguous vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu._emit import Emitter, Int, Reg
    from smelt.backends.cpu.families._vectors import ElementConversion

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
            vectors[low], vectors[high] = (_shuffled(e, pair, order) for order in (first, second))
        bit *= 2
    return vectors


def _shuffled(e: Emitter, pair: tuple[Reg, Reg], order: Sequence[int]) -> Reg:
    """Write a shuffle of two vectors in a constant order."""
    indices = ", ".join(f"i32 {lane}" for lane in order)
    mask = f"<{len(order)} x i32> <{indices}>"
    return e.emit(pair[0].type, f"shufflevector {pair[0]}, {pair[1]}, {mask}")
