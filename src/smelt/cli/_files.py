"""Which files a command reads and which it writes: nothing is written over what is read."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smelt.errors import SmeltError
from smelt.types import is_special, override, require_path

if TYPE_CHECKING:
    from collections.abc import Iterator


class _File(click.ParamType[str]):
    """A file's name."""

    name = "file"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        if not str(value):
            self.fail("the file name is empty", param, ctx)
        return str(value)


class SourceFile(_File):
    """A file that a command reads."""


class NamedSource(SourceFile):
    """A file that a command reads, or a word, with a name: ``NAME=VALUE``."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        name, _, file = str(value).partition("=")
        if not name or not file:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return str(value)


class ResultFile(_File):
    """A file that a command writes."""

    def __init__(self, *, beside: str = "", is_needed: bool = True) -> None:
        """Describe the file.

        Args:
            beside: suffix of another that is written next to it, if that is given.
            is_needed: whether it is an error that it cannot be written.
        """
        self.beside = beside
        self.is_needed = is_needed


class FileCommand(click.Command):
    """A command that looks at what it shall write before any work.

    It refuses to write a file over one that it reads, and where nothing can be written.
    """

    @override
    def invoke(self, ctx: click.Context) -> Any:
        """Look at the files, then run.

        Raises click.UsageError: one would be written over.
        Raises SmeltError: one cannot be written.
        """
        taken = list(_sources(self, ctx))
        for path in _results(self, ctx):
            if any(_is_same_file(path, other) for other in taken):
                raise click.UsageError(
                    f"{path} is both an input and an output of this command, or an output twice; "
                    "give the output another name",
                    ctx,
                )
            taken.append(path)
        for path in _results(self, ctx, needed=True):
            check_writable(Path(path))
        return super().invoke(ctx)


def check_writable(path: Path) -> None:
    """See to it early that a file can be written: better now than after minutes of tuning.

    Raises SmeltError: it cannot be; says what to do.
    """
    folder = path.parent
    try:
        require_path(path, "a file to be written")
        folder.stat()
    except FileNotFoundError:
        made = f"mkdir -p {shlex.quote(str(folder))}"
        raise _unwritable(
            path, f"the folder {folder} does not exist; create it first: {made}"
        ) from None
    except OSError as error:
        raise _unwritable(path, f"{folder}: {error.strerror}") from error
    if os.path.isdir(path):
        reason = f"it is a folder; give a file in it, {path / 'NAME'}"
    elif not os.path.isdir(folder):
        reason = f"{folder} is not a folder"
    elif not os.access(path if is_special(path) else folder, os.W_OK):
        reason = f"{folder} is not writable; give a file in another folder"
    else:
        return
    raise _unwritable(path, reason)


def check_suffix(suffix: str, what: str, *paths: str | None) -> None:
    """See to it that each file's name says what is in it: readers choose by that.

    Raises SmeltError: a name says otherwise.
    """
    for path in paths:
        if path and not path.lower().endswith(suffix) and not is_special(path):
            raise SmeltError(
                f"the output is {what}, and the suffix of {path} is another; name it "
                f"{Path(path).with_suffix(suffix)}"
            )


def _unwritable(path: Path, reason: str) -> SmeltError:
    return SmeltError(f"{path} cannot be written: {reason}")


def _sources(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter.type, SourceFile):
            for text in _texts(parameter, ctx):
                yield text
                yield text.partition("=")[2]


def _results(command: click.Command, ctx: click.Context, *, needed: bool = False) -> Iterator[str]:
    """What is written; or only what must be, if that is ``needed``."""
    for parameter in command.params:
        if isinstance(parameter.type, ResultFile) and parameter.type.is_needed >= needed:
            for text in _texts(parameter, ctx):
                yield text
                if parameter.type.beside and Path(text).name:
                    yield str(Path(text).with_suffix(parameter.type.beside))


def _texts(parameter: click.Parameter, ctx: click.Context) -> tuple[str, ...]:
    """What the command line says of a file, or of several."""
    value: str | tuple[str, ...] | None = ctx.params.get(parameter.name or "")
    return value if isinstance(value, tuple) else (value,) if value else ()


def _is_same_file(path: str, other: str) -> bool:
    """Whether both name one file, be it there or not; devices take whatever comes."""
    if not other or is_special(path):
        return False
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # one is not there yet
        return os.path.realpath(path) == os.path.realpath(other)
