"""Options that several commands share."""

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
"""An argument of `build` in a message, with its value."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_SHAPE: Final = re.compile(r"'([^']+)': \(([\d, ]+)\)")
"""The shape of an input in a message."""

_MAX_COUNT: Final = 2**31 - 1
"""Default largest value of `Count`."""


class Count(click.IntRange):
    """An integer in ASCII digits, of at most 31 bits by default."""

    def __init__(self, minimum: int, maximum: int = _MAX_COUNT) -> None:
        super().__init__(minimum, maximum)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert the text."""
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
    """Return a line with the options for the build arguments that a message names, if any."""
    advice: dict[str, None] = {}
    for name, value in _ARGUMENT.findall(text):
        option = "--" + name.replace("_", "-")
        if name == "shapes":
            shapes = [(n, re.findall(r"\d+", extents)) for n, extents in _SHAPE.findall(text)]
            options = [f"--shape {n}={'x'.join(extents)}" for n, extents in shapes]
            advice[" ".join(options or ["--shape NAME=1x3x224x224"]) + ", or 1..8 for a range"] = (
                None
            )
        elif option not in text:
            advice[f"{option} {value}".rstrip()] = None
    return (f"On the command line: {', '.join(advice)}",) if advice else ()
