"""Tables in letters, for screens of any width."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from smelt.types._text_formatting import count_cells, split_line, wrap_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MARGIN: Final = " "
_INDENT: Final = 8
"""Of a row's second line and those behind it."""
_GAP: Final = 3
_FOLDED: Final = 40
"""Cells that a column of words keeps, where it is folded so that a row is one line."""
WIDTH_OF_FILES: Final = 160
"""Cells of a line where there is no screen, and of a table's, unless it takes more."""
_LONGEST: Final = 100
"""Cells of the widest column of numbers or names that is not folded."""


@dataclass(frozen=True, slots=True)
class _Column:
    index: int
    word: int
    """Cells of what is never broken."""
    longest: int
    is_number: bool

    @property
    def least(self) -> int:
        """Cells in a row of one line."""
        return min(self.longest, max(self.word, _FOLDED))


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows under heads; numbers, on the right, and names are in one piece, words may be folded.

    Where a row does not fit a screen so, it takes several lines, and so do the heads.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: str = ""
    """The heads of columns of numbers."""
    names: str = ""
    """The heads of columns of names."""

    def lines(self, width: int | None) -> Iterator[str]:
        """The table for a screen of so many cells; None for a file, where a row is one line."""
        lines = self._lines(width)
        yield from (
            lines if width is None else (p for line in lines for p in split_line(line, width))
        )

    def _lines(self, width: int | None) -> Iterator[str]:
        columns = [self._column(index) for index in range(len(self.heads))]
        least = sum(column.least + _GAP for column in columns) - _GAP
        room = max(WIDTH_OF_FILES, least) if width is None else width - len(_MARGIN)
        groups = [(0, columns)] if least <= room else list(_stacked(columns, room))
        widths = {i: n for indent, g in groups for i, n in _widths(g, room - indent).items()}
        heads = list(_row_lines(groups, widths, self.heads))
        rows = [line for row in self.rows for line in _row_lines(groups, widths, row)]
        yield from ("", *heads)
        longest = max(map(count_cells, (*heads, *rows)))
        longest = longest if width is None else min(longest, width)
        yield _MARGIN + "─" * (longest - len(_MARGIN))
        yield from (*rows, "")

    def _column(self, index: int) -> _Column:
        cells = [self.heads[index], *(str(row[index]) for row in self.rows)]
        longest = max(count_cells(line) for cell in cells for line in cell.split("\n"))
        head, is_number = self.heads[index], self.heads[index] in self.numbers.split()
        if longest <= _LONGEST and (is_number or head in self.names.split()):
            return _Column(index, longest, longest, is_number)
        word = max(count_cells(line) for cell in cells for line in wrap_words(cell, 1, ""))
        return _Column(index, word, longest, is_number)


def _stacked(columns: Sequence[_Column], room: int) -> Iterator[tuple[int, list[_Column]]]:
    """The columns of each line with its indent, none of them folded that need not be."""
    indent, left = 0, room
    group: list[_Column] = []
    for column in columns:
        if group and left < column.longest:
            yield indent, group
            indent, left, group = _INDENT, room - _INDENT, []
        group.append(column)
        left -= column.longest + _GAP
    yield indent, group


def _widths(group: Sequence[_Column], room: int) -> dict[int, int]:
    """What each column of a line has, by its index: the widest ones give way alike."""
    room -= _GAP * (len(group) - 1)

    def fitted(most: int) -> dict[int, int]:
        return {c.index: min(c.longest, max(c.word, most)) for c in group}

    fitting = (most for most in range(room, 0, -1) if sum(fitted(most).values()) <= room)
    return fitted(next(fitting, 0))


def _row_lines(
    groups: Sequence[tuple[int, Sequence[_Column]]], widths: dict[int, int], row: Sequence[object]
) -> Iterator[str]:
    for indent, group in groups:
        cells = [wrap_words(str(row[c.index]), widths[c.index], "") for c in group]
        for parts in zip_longest(*cells, fillvalue=""):
            padded: list[str] = []
            for column, part in zip(group, parts, strict=True):
                pad = " " * (widths[column.index] - count_cells(part))
                padded.append(pad + part if column.is_number else part + pad)
            line = (_MARGIN + " " * indent + (" " * _GAP).join(padded)).rstrip()
            if line:
                yield line
