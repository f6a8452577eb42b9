"""Options that several commands have."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import click

from smelt.cli._files import NamedSource, ResultFile

_ARGUMENT: Final = re.compile(
    r"\b(device|precision|max_batch_size|max_workspace_bytes|shapes|timing_cache|tune|retunable"
    r"|libraries|portable|rounding_error)=(?:True\b|[\"']?([\w.:,-]*))"
)
"""An argument of a build in a message, with its value."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_SHAPE: Final = re.compile(r"'([^']+)': \(([\d, ]+)\)")
"""An input's shape in a message."""

_MAX_COUNT: Final = 2**31 - 1


class Count(click.IntRange):
    """A whole number in the digits 0 to 9, of at most 31 bits."""

    def __init__(self, least: int, most: int = _MAX_COUNT) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The value of a text."""
        if not _WHOLE.fullmatch(str(value)[:80]):
            self.fail(f"{str(value)[:80]!r} is not an integer of at most 18 digits", param, ctx)
        return int(super().convert(value, param, ctx))


json_option = partial(click.option, "--json", "as_json", is_flag=True, help="Print JSON on stdout.")
input_option = partial(click.option, "--input", "inputs", multiple=True, type=NamedSource())
engine_option = partial(click.option, "-o", "--engine", "destination", type=ResultFile())
output_option = partial(click.option, "--output", multiple=True, metavar="NAME")
THREADS_OPTION: Final = click.option(
    "--threads",
    type=Count(1, 1024),
    help="Number of threads.  [default: all processors that this process may use]",
)
QUIET_OPTION: Final = click.option("--quiet", is_flag=True, help="Show no progress and no summary.")


def messages_as_options(text: str) -> tuple[str, ...]:
    """The options for the build arguments that a message names: one line, or none."""
    detail: dict[str, None] = {}
    for name, value in _ARGUMENT.findall(text):
        option = "--" + name.replace("_", "-")
        if name == "shapes":
            shown = [(n, re.findall(r"\d+", extents)) for n, extents in _SHAPE.findall(text)]
            options = [f"--shape {n}={'x'.join(extents)}" for n, extents in shown]
            detail[" ".join(options or ["--shape NAME=1x3x224x224"]) + ", or 1..8 for a range"] = (
                None
            )
        elif option not in text:
            detail[f"{option} {value}".rstrip()] = None
    return (f"On the command line: {', '.join(detail)}",) if detail else ()
