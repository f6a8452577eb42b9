"""How numbers and lines are written for a reader."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_BITS: Final = 128
"""Of a number that is written digit by digit."""
_HANG: Final = 6
"""Spaces that the later lines of one line stand behind its first: more than any line of ours begins
with, so that the rest of a long name from a file is never taken for one."""


def format_number(number: float, digits: int) -> str:
    """A number with so many digits after the point; a small one keeps two that count."""
    return f"{number:.2g}" if 0 < abs(number) < 10 ** (1 - digits) else f"{number:,.{digits}f}"


def format_integer(number: int) -> str:
    """A whole number; of one that nobody reads, how long it is."""
    if number.bit_length() <= _MAX_BITS:
        return f"{number:,}"
    return f"{'-' if number < 0 else ''}10**{int(number.bit_length() * math.log10(2))}"


def format_percent(share: float | None, digits: int = 0) -> str:
    """A share in percent; a dash for none."""
    return "-" if share is None else f"{format_number(share * 100, digits)}%"


def counted(number: object, noun: str) -> str:
    """So many of them, in words; a symbol counts as many."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def count_cells(text: str) -> int:
    """How many places on a screen a text takes: two for a letter of the far east."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter)
        for letter in text
    )


def wrap_words(text: str, width: int, indent: str | None = None) -> list[str]:
    """Lines of at most ``width`` cells, each broken where a word ends, if not within a list's item.

    A word that is longer is broken too, if not within a list's item. Spaces inside a line stay.

    Args:
        text: lines; each is wrapped alone.
        width: of the screen, in cells.
        indent: what later lines start with; None for six spaces more than the first has.
    """
    lines = (part for line in text.split("\n") for part in _wrapped(line, width, indent))
    return [
        part for line in lines for part in (split_line(line, width) if indent is None else [line])
    ]


def split_line(line: str, width: int) -> list[str]:
    """Parts of a line that has a word longer than a screen of ``width`` cells.

    A terminal would go on at its edge, where lines of ours begin.
    """
    if count_cells(line) <= width:
        return [line]
    hang = " " * min(len(line) - len(line.lstrip()) + _HANG, width // 2)
    parts, made = list[str](), ""
    for letter in line:
        if made.strip() and count_cells(made + letter) > width:
            parts.append(made)
            made = hang
        made += letter
    return [*parts, made]


def _wrapped(line: str, width: int, indent: str | None) -> Iterator[str]:
    start = line[: len(line) - len(line.lstrip())]
    later = start + " " * min(_HANG, width // 2) if indent is None else indent
    made = start
    gap = ""
    for word, space in re.findall(r"((?:\([-\d, ]*\)|\[[-\d, ]*\]|\S)+)(\s*)", line):
        if made.strip() and count_cells(made + gap + word) > width:
            yield made
            made, gap = later, ""
        made += gap + word
        gap = space
    yield made
