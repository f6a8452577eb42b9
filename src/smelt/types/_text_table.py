"""Text tables that adapt to the width of the terminal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from smelt.types._text_formatting import count_cells, split_line, wrap_words

_MARGIN: Final = " "
"""Start of every line of a table."""
_INDENT: Final = 8
"""Cells by which the second and later lines of a row are indented."""
_GAP: Final = 3
"""Cells between two columns."""
_FOLDED: Final = 40
"""Least width in cells to which a column of words is folded to fit a row into one line."""
WIDTH_OF_FILES: Final = 160
"""Width in cells of lines and tables in files; a table that needs more is wider."""
_MAX_PADDED: Final = 256
"""Most cells to which a column is padded: more than a screen has. A longer cell is shown whole, but
padding to it would repeat its length as spaces in every row."""
_LONGEST: Final = 100
"""Cells of the widest column of numbers or names that is never folded."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Widths of a column, in cells."""

    index: int
    word: int
    """Cells of the longest word, which is never split."""
    longest: int
    """Cells of the longest line of a cell."""
    is_number: bool

    @property
    def least(self) -> int:
        """Least width of the column, in cells, in a row of one line."""
        return min(self.longest, max(self.word, _FOLDED))


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows under headings. Numbers are right-aligned; numbers and names are kept whole, words wrap.

    A row that does not fit the width takes several lines, and so do the headings.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: str = ""
    """Headings of the columns of numbers, separated by spaces."""
    names: str = ""
    """Headings of the columns of names, separated by spaces."""

    def lines(self, width: int | None) -> Iterator[str]:
        """Yield the lines for a screen of ``width`` cells; for a file (None), a row is one line."""
        lines = self._lines(width)
        yield from (
            lines if width is None else (p for line in lines for p in split_line(line, width))
        )

    def _lines(self, width: int | None) -> Iterator[str]:
        """Yield the lines of the table; lines may exceed ``width`` if a word is longer."""
        columns = [self._column(index) for index in range(len(self.heads))]
        least = sum(column.least + _GAP for column in columns) - _GAP
        available = max(WIDTH_OF_FILES, least) if width is None else width - len(_MARGIN)
        groups = [(0, columns)] if least <= available else list(_stacked(columns, available))
        widths = {i: n for indent, g in groups for i, n in _widths(g, available - indent).items()}
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


def _stacked(columns: Sequence[_Column], available: int) -> Iterator[tuple[int, list[_Column]]]:
    """Yield the indent and the columns of each line of a row, without needless folding."""
    indent, remaining = 0, available
    group: list[_Column] = []
    for column in columns:
        if group and remaining < column.longest:
            yield indent, group
            indent, remaining, group = _INDENT, available - _INDENT, []
        group.append(column)
        remaining -= column.longest + _GAP
    yield indent, group


def _widths(group: Sequence[_Column], available: int) -> dict[int, int]:
    """Return the width of each column of a line by index; the widest columns shrink equally."""
    available -= _GAP * (len(group) - 1)

    def fitted(limit: int) -> dict[int, int]:
        return {c.index: min(c.longest, max(c.word, limit)) for c in group}

    return fitted(
        bisect_right(
            range(1, available + 1), available, key=lambda limit: sum(fitted(limit).values())
        )
    )


def _row_lines(
    groups: Sequence[tuple[int, Sequence[_Column]]], widths: dict[int, int], row: Sequence[object]
) -> Iterator[str]:
    """Yield the lines of one row, each cell wrapped to the width of its column."""
    for indent, group in groups:
        cells = [wrap_words(str(row[c.index]), widths[c.index], "") for c in group]
        for parts in zip_longest(*cells, fillvalue=""):
            padded: list[str] = []
            for column, part in zip(group, parts, strict=True):
                pad = " " * (min(widths[column.index], _MAX_PADDED) - count_cells(part))
                padded.append(pad + part if column.is_number else part + pad)
            line = (_MARGIN + " " * indent + (" " * _GAP).join(padded)).rstrip()
            if line:
                yield line
