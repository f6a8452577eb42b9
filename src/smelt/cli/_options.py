"""Options that several commands have."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from smelt.cli._files import ResultFile, SourceFile

json_option = partial(
    click.option, "--json", "as_json", is_flag=True, help="Answer as JSON on stdout."
)
input_option = partial(click.option, "--input", "inputs", multiple=True, type=SourceFile())
engine_option = partial(click.option, "-o", "--engine", "destination", type=ResultFile())
output_option = partial(click.option, "--output", multiple=True, metavar="NAME")
THREADS_OPTION: Final = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads.  [default: every core]"
)
QUIET_OPTION: Final = click.option("--quiet", is_flag=True, help="Show no progress and no summary.")
