"""Output of the commands: results to standard output, everything else to standard error."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from smelt.errors import escape_controls, remove_controls, sanitize_name
from smelt.types import TextTable, is_dict, is_sequence, wrap_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.logger import Severity


def open_streams() -> None:
    """Make the standard streams usable for any text.

    A missing stream is replaced by the null device. Characters that the encoding of standard output
    lacks are replaced.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif name == "stdout" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def screen_width(stream: TextIO) -> int | None:
    """Return the width in columns of a stream's terminal; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def say(*lines: str) -> None:
    """Write lines to standard error, wrapped between words to the width of a terminal.

    Each argument is one line; a line feed in it comes from a name, and is masked.
    """
    click.echo(_fitted(lines, sys.stderr), err=True)


def show(*lines: str) -> None:
    """Write lines of a result to standard output, formatted as by `say`."""
    click.echo(_fitted(lines, sys.stdout))


def _fitted(lines: Sequence[str], stream: TextIO) -> str:
    width = screen_width(stream)
    text = "\n".join(map(sanitize_name, lines))
    return text if width is None else "\n".join(wrap_words(text, width))


class ConsoleLogger:
    """Logger that writes messages to standard error."""

    def log(self, severity: Severity, message: str, /) -> None:
        """Write a message as it is; its names were masked by the code that logs it."""
        del severity
        say(*message.split("\n"))


def print_json(data: Mapping[str, object]) -> None:
    """Write a result as standard JSON; infinite values and NaN become null."""
    is_unicode = codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
    text = json.dumps(plain(data), indent=2, allow_nan=False, ensure_ascii=not is_unicode)
    click.echo(escape_controls(text))


def print_report(
    report: Mapping[str, Any], show_report: Callable[[Mapping[str, Any]], None], *, as_json: bool
) -> None:
    """Print a report as JSON, or as ``show_report`` shows it."""
    if as_json:
        print_json(report)
    else:
        show_report(report)


def plain(value: Any) -> Any:
    """Return a value converted to types and numbers that JSON has."""
    if is_dict(value):
        return {str(name): plain(field) for name, field in value.items()}
    if is_sequence(value):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(
    rows: Sequence[Sequence[object]], heads: Sequence[str], *, title: str | None = None
) -> None:
    """Write a table to standard output; columns of numbers are right-aligned."""
    if title is not None:
        show(title)
    columns = zip(*rows, strict=True) if rows else ()
    numbers = [h for h, cells in zip(heads, columns, strict=False) if all(map(_is_number, cells))]
    cells = [
        [sanitize_name(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    ]
    lines = TextTable(heads, cells, " ".join(numbers)).lines(screen_width(sys.stdout))
    click.echo(remove_controls("\n".join(lines)))


def _is_number(cell: object) -> bool:
    text = str(cell).split(" ")[0].rstrip("%")
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True
