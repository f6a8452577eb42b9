"""Which files a command reads and which it writes: nothing is written over what is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator


class SourceFile(click.ParamType[str]):
    """A file that a command reads; may be ``NAME=FILE``."""

    name = "file"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)


class ResultFile(click.ParamType[str]):
    """A file that a command writes."""

    name = "file"

    def __init__(self, *, beside: str = "") -> None:
        """Another of the suffix ``beside`` is written next to it, if that is given."""
        self.beside = beside

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)


class FileCommand(click.Command):
    """A command that refuses to write a file over one that it reads, before any work."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        """Look at the files, then run.

        Raises click.UsageError: one would be written over.
        """
        taken = list(_sources(self, ctx))
        for path in _results(self, ctx):
            if any(_is_same_file(path, other) for other in taken):
                raise click.UsageError(
                    f"{path} would be written over what this command reads or writes itself; "
                    "give another name to what it writes",
                    ctx,
                )
            taken.append(path)
        return super().invoke(ctx)


def _sources(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.type, SourceFile | click.Path):
            for text in _texts(parameter, ctx):
                yield text
                yield text.partition("=")[2]


def _results(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.type, ResultFile):
            for text in _texts(parameter, ctx):
                yield text
                if parameter.type.beside:
                    yield str(Path(text).with_suffix(parameter.type.beside))


def _texts(parameter: click.Parameter, ctx: click.Context) -> tuple[str, ...]:
    """What the command line says of a file, or of several."""
    value: str | tuple[str, ...] | None = ctx.params.get(parameter.name or "")
    return value if isinstance(value, tuple) else (value,) if value else ()


def _is_same_file(path: str, other: str) -> bool:
    """Whether both name one file, be it there or not; devices take whatever comes."""
    if not other or (os.path.exists(path) and not os.path.isfile(path)):
        return False
    try:
        return os.path.samefile(path, other)
    except OSError:  # one is not there yet
        return os.path.realpath(path) == os.path.realpath(other)
