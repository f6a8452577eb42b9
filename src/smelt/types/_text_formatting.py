"""Formatting of numbers and wrapping of lines for messages and terminal output."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

_MAX_BITS: Final = 128
"""Bits of the largest integer that is written digit by digit."""
_HANGING_INDENT: Final = 6
"""Spaces by which the continuation lines of a wrapped line are indented beyond its first line.

No line that smelt writes starts with as many spaces, so the continuation of a long name from a file
is never mistaken for a line of its own."""

_MAX_COMPARED_CHARACTERS: Final = 100
"""Characters of the longest name that is compared with others."""
_MAX_COMPARED_NAMES: Final = 1000
"""Largest number of names that are compared with a name."""


def format_number(number: float, digits: int) -> str:
    """Return a number with ``digits`` decimals; a small number keeps two significant digits."""
    return f"{number:.2g}" if 0 < abs(number) < 10 ** (1 - digits) else f"{number:,.{digits}f}"


def format_integer(number: int) -> str:
    """Return an integer with thousands separators; a very long one as a power of ten."""
    if number.bit_length() <= _MAX_BITS:
        return f"{number:,}"
    return f"{'-' if number < 0 else ''}10**{int(number.bit_length() * math.log10(2))}"


def format_percent(share: float | None, digits: int = 0) -> str:
    """Return a fraction (0 to 1) as a percentage; ``"-"`` for None."""
    return "-" if share is None else f"{format_number(share * 100, digits)}%"


def counted(number: object, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1; a symbol is plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def count_cells(text: str) -> int:
    """Return the number of terminal cells of a text.

    An East Asian wide character takes two cells, a combining character none.
    """
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return not unicodedata.combining(character)


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of ``names`` that resemble ``name``, for the hint of a message.

    Only the last names, and only short ones, are compared, because a comparison takes quadratic
    time.
    """
    import difflib  # for messages alone

    if len(name) > _MAX_COMPARED_CHARACTERS:
        return []
    short_names = [other for other in names if len(other) <= _MAX_COMPARED_CHARACTERS]
    return difflib.get_close_matches(name, short_names[-_MAX_COMPARED_NAMES:], 3)


def wrap_words(text: str, width: int, indent: str | None = None) -> list[str]:
    """Wrap text to lines of at most ``width`` cells, which end where a word ends.

    A bracketed list of numbers counts as one word. Spaces inside a line are kept. A word longer
    than ``width`` is split only if ``indent`` is None.

    Args:
        text: the lines; each one is wrapped separately.
        width: width of the screen, in cells.
        indent: start of every continuation line; None for the indent of the first line plus six
            spaces (a hanging indent).
    """
    lines = (part for line in text.split("\n") for part in _wrapped(line, width, indent))
    return [
        part for line in lines for part in (split_line(line, width) if indent is None else [line])
    ]


def split_line(line: str, width: int) -> list[str]:
    """Split a line that is longer than ``width`` cells, with a hanging indent.

    A terminal would continue the line in its first column, where a new line could begin.
    """
    if count_cells(line) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()) + _HANGING_INDENT, width // 2)
    starts, cells, is_blank = [0], 0, True
    for index, character in enumerate(line):
        size = _cells_of(character)
        if not is_blank and cells + size > width:
            starts.append(index)
            cells, is_blank = len(indent), True
        cells += size
        is_blank = is_blank and character.isspace()
    first, *others = (line[start:end] for start, end in pairwise([*starts, len(line)]))
    return [first, *(indent + part for part in others)]


def _wrapped(line: str, width: int, indent: str | None) -> Iterator[str]:
    """Yield the parts of one line, split between words."""
    start = line[: len(line) - len(line.lstrip())]
    continuation = start + " " * min(_HANGING_INDENT, width // 2) if indent is None else indent
    part, cells = start, count_cells(start)
    pending_space = ""
    for word, space in re.findall(r"((?:\([-\d, ]*\)|\[[-\d, ]*\]|\S)+)(\s*)", line):
        size = count_cells(pending_space + word)
        if part.strip() and cells + size > width:
            yield part
            part, cells, pending_space = continuation, len(continuation), ""
            size = count_cells(word)
        part += pending_space + word
        cells += size
        pending_space = space
    yield part
