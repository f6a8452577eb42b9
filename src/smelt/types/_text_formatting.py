"""Formatting of numbers and wrapping of lines for messages and terminal output."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_BITS: Final = 128
"""Bits of the largest integer that is written digit by digit."""
_HANGING_INDENT: Final = 6
"""Spaces by which the continuation lines of a wrapped line are indented beyond its first line.

No line that smelt writes starts with as many spaces, so the continuation of a long name from a file
is never mistaken for a line of its own."""


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
    return sum(
        2
        if unicodedata.east_asian_width(character) in "WF"
        else not unicodedata.combining(character)
        for character in text
    )


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
    parts, part = list[str](), ""
    for character in line:
        if part.strip() and count_cells(part + character) > width:
            parts.append(part)
            part = indent
        part += character
    return [*parts, part]


def _wrapped(line: str, width: int, indent: str | None) -> Iterator[str]:
    """Yield the parts of one line, split between words."""
    start = line[: len(line) - len(line.lstrip())]
    continuation = start + " " * min(_HANGING_INDENT, width // 2) if indent is None else indent
    part = start
    pending_space = ""
    for word, space in re.findall(r"((?:\([-\d, ]*\)|\[[-\d, ]*\]|\S)+)(\s*)", line):
        if part.strip() and count_cells(part + pending_space + word) > width:
            yield part
            part, pending_space = continuation, ""
        part += pending_space + word
        pending_space = space
    yield part
