"""Options that several commands share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._file_arguments import NamedInput, OutputFile
from smelt.errors import arguments_of, sanitize_name

if TYPE_CHECKING:
    from smelt.errors import Argument

OPTIONS: Final = {
    "device": "--device",
    "libraries": "--libraries",
    "max_batch_size": "--max-batch-size",
    "max_workspace_bytes": "--max-workspace-bytes",
    "self_contained": "--self-contained",
    "shapes": "--shape",
    "tune": "--tune",
}
"""Option by the name of the argument of `smelt.build`, for the arguments that errors name."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

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


flag_option = partial(click.option, is_flag=True)
json_option = partial(flag_option, "--json", "as_json", help="Print JSON on stdout.")
input_option = partial(click.option, "--input", "inputs", multiple=True, type=NamedInput())
engine_option = partial(click.option, "-o", "--engine", "destination", type=OutputFile())
output_option = partial(click.option, "--output", "output_names", multiple=True, metavar="NAME")
THREADS_OPTION: Final = click.option(
    "--threads",
    type=Count(1, 1024),
    help="Number of threads.  [default: all processors that this process may use]",
)
QUIET_OPTION: Final = flag_option("--quiet", help="Show no progress and no summary.")


def error_text(error: BaseException) -> str:
    """Return the message of an error, followed by a line with the options that it advises."""
    arguments = (argument for argument in arguments_of(error) if argument.name in OPTIONS)
    options = ", ".join(dict.fromkeys(map(_option, arguments)))  # plugins may name others
    return f"{error!s}\nOn the command line: {sanitize_name(options)}" if options else str(error)


def _option(argument: Argument) -> str:
    """Return the text of the option for an argument."""
    option, value = OPTIONS[argument.name], argument.value
    if argument.name == "shapes":
        shapes = value if isinstance(value, Mapping) else {"NAME": (1, 3, 224, 224)}
        texts = [f"{n}={'x'.join(map(str, extents))}" for n, extents in shapes.items()]
        return " ".join(f"{option} {shlex.quote(text)}" for text in texts) + ", or 1..8 for a range"
    is_flag = value is None or isinstance(value, bool)
    return option if is_flag else f"{option} {shlex.quote(str(value))}"
