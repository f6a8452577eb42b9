"""Where a command writes: answers to standard output, everything else to standard error."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 160


def say(text: str) -> None:
    """Write a line to standard error."""
    click.echo(text, err=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Write an answer as JSON, exact and standard: what is not a number is null."""
    click.echo(json.dumps(plain(data), indent=2, allow_nan=False, ensure_ascii=False))


def plain(value: Any) -> Any:
    """The value in what JSON has."""
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        return {str(name): plain(field) for name, field in fields.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in cast("Sequence[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def answers() -> Console:
    """The console of standard output; into a file it does not cut lines at eighty columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(width=width, highlight=False, soft_wrap=False)


def print_table(
    rows: Sequence[Sequence[object]], heads: Sequence[str], *, title: str | None = None
) -> None:
    """Write a table; columns of numbers are aligned on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = answers()
    if title is not None:
        out.print(Text(title))
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column, head in enumerate(heads):
        numeric = bool(rows) and all(_is_number(row[column]) for row in rows)
        table.add_column(
            Text(head),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=numeric,
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    out.print(table)


def _is_number(cell: object) -> bool:
    text = str(cell).split(" ")[0].rstrip("%")
    return isinstance(cell, int | float) or text.replace(".", "").replace(",", "").isdigit()


def format_bytes(size_bytes: int) -> str:
    """A size in the unit that suits it."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
