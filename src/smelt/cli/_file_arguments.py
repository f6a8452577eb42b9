"""Types of file arguments, and checks that output files are writable and overwrite no input."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smelt.engine import MAGIC
from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error, path_mode, suppress_own
from smelt.types import Limit, is_special, open_file, override, require_path

if TYPE_CHECKING:
    from collections.abc import Iterator


class _File(click.ParamType[str]):
    """Type of an argument that is the name of a file."""

    name = "file"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged."""
        if not str(value):
            self.fail("the file name is empty", param, ctx)
        return str(value)


class InputFile(_File):
    """A file that a command reads."""


class ModelFile(InputFile):
    """A model or an engine; an ONNX model may have external data in other files."""


class NamedInput(InputFile):
    """A named input, ``NAME=VALUE``, whose value is a file to read or a word."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged."""
        name, _, file = str(value).partition("=")
        if not name or not file:
            self.fail(f"{value!r} is not of the form NAME=VALUE", param, ctx)
        return str(value)


class OutputFile(_File):
    """A file that a command writes."""

    def __init__(
        self, *, second_suffix: str = "", numbered_suffix: str = "", must_be_writable: bool = True
    ) -> None:
        """Create the type.

        Args:
            second_suffix: suffix of a second file of the same name that is also written; "" for
                none.
            numbered_suffix: suffix of further files ``<name>_<number><suffix>`` that are also
                written; "" for none.
            must_be_writable: whether it is an error if the file cannot be written.
        """
        self.second_suffix = second_suffix
        self.numbered_suffix = numbered_suffix
        self.must_be_writable = must_be_writable


class FileCommand(click.Command):
    """A command that checks its output files before it does anything else.

    An output file must be writable and must not be another file of the command.
    """

    @override
    def invoke(self, ctx: click.Context) -> Any:
        """Check the files, then run the command.

        Raises:
            click.UsageError: an output is also another file of the command.
            SmeltError: an output cannot be written.
        """
        taken = [*_sources(self, ctx), *_data_files(self, ctx)]
        for path in _results(self, ctx):
            if any(_is_same_file(path, other) for other in taken):
                raise click.UsageError(
                    f"{path} is an output and also another file of this command; give the output "
                    "another name",
                    ctx,
                )
            taken.append(path)
        for path in _results(self, ctx, needed=True):
            check_writable(Path(path))
        return super().invoke(ctx)


def check_writable(path: Path) -> None:
    """Check that a file can be written, so that a command fails before a long build.

    Raises:
        SmeltError: the file cannot be written; the message says what to do.
    """
    folder = path.parent
    try:
        require_path(path, "a file to be written")
        folder.stat()
    except FileNotFoundError as error:
        pass_on_handler_error(error)
        command = f"mkdir -p {shlex.quote(str(folder))}"
        raise _unwritable(
            path, f"the folder {folder} does not exist; create it first: {command}"
        ) from None
    except OSError as error:
        pass_on_handler_error(error)
        raise _unwritable(path, f"{folder}: {error.strerror}") from error
    if stat.S_ISDIR(path_mode(path)):
        reason = f"it is a folder; give a file in it, {path / 'NAME'}"
    elif not stat.S_ISDIR(path_mode(folder)):
        reason = f"{folder} is not a folder"
    elif is_special(path):
        if os.access(path, os.W_OK):
            return
        reason = "it is not a writable device, pipe or open file"
    elif not os.access(folder, os.W_OK):
        reason = f"{folder} is not writable; give a file in another folder"
    else:
        return
    raise _unwritable(path, reason)


def check_suffix(suffix: str, what: str, *paths: str | None) -> None:
    """Check the suffix of output files, by which other programs recognise their format.

    Args:
        suffix: the required suffix.
        what: description of the format, for the message.
        paths: names of files; None is ignored.

    Raises:
        SmeltError: a name has another suffix.
    """
    for path in paths:
        if path and not path.lower().endswith(suffix) and not is_special(path):
            raise SmeltError(
                f"the output {path} is {what}, so its suffix must be {suffix}; name it "
                f"{Path(path).with_suffix(suffix)}"
            )


def _unwritable(path: Path, reason: str) -> SmeltError:
    return SmeltError(f"{path} cannot be written: {reason}")


def _sources(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield the names of files that a command may read."""
    for parameter in command.params:
        if isinstance(parameter.type, InputFile):
            for text in _texts(parameter, ctx):
                yield text
                yield text.partition("=")[2]


def _data_files(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield the files of the external data of models that a command reads.

    A model is decoded only if an output would replace a file in its folder that is not an engine.
    """
    replaced = [
        os.path.realpath(path)
        for path in _results(command, ctx, needed=True)
        if stat.S_ISREG(path_mode(path)) and not is_engine(path)
    ]
    models = (p for p in command.params if isinstance(p.type, ModelFile))
    for model in (text for parameter in models for text in _texts(parameter, ctx)):
        folder = os.path.join(os.path.realpath(os.path.dirname(model)), "")
        if any(path.startswith(folder) for path in replaced) and not is_engine(model):
            from smelt.importers import external_files

            with contextlib.suppress(SmeltError):  # the command itself reports it
                yield from map(str, external_files(model))


def is_engine(path: str) -> bool:
    """Return whether a file is an engine; False if it cannot be read."""
    try:
        with open_file(path, Limit.MAX_ENGINE_BYTES) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError) as error:
        pass_on_handler_error(error)
        return False  # the command reports the error


def _results(command: click.Command, ctx: click.Context, *, needed: bool = False) -> Iterator[str]:
    """Yield the names of files that a command writes; with ``needed``, only the required ones."""
    for parameter in command.params:
        if isinstance(parameter.type, OutputFile) and parameter.type.must_be_writable >= needed:
            for text in _texts(parameter, ctx):
                yield text
                if parameter.type.second_suffix and Path(text).name:
                    yield str(Path(text).with_suffix(parameter.type.second_suffix))
                if parameter.type.numbered_suffix:
                    yield from _numbered(Path(text), parameter.type.numbered_suffix, command, ctx)


def _numbered(path: Path, suffix: str, command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield the numbered files beside an output that exist or that other files may be named as."""
    files = [parameter for parameter in command.params if isinstance(parameter.type, _File)]
    names = {os.path.basename(text) for file in files for text in _texts(file, ctx)}
    with suppress_own(OSError):  # `check_writable` reports it
        names.update(os.listdir(path.parent))
    pattern = re.compile(rf"{re.escape(path.stem)}_[0-9]+{re.escape(suffix)}")
    yield from (str(path.with_name(name)) for name in sorted(names) if pattern.fullmatch(name))


def _texts(parameter: click.Parameter, ctx: click.Context) -> tuple[str, ...]:
    """Return the values of a parameter that takes a file or several."""
    value: str | tuple[str, ...] | None = ctx.params.get(parameter.name or "")
    return value if isinstance(value, tuple) else (value,) if value else ()


def _is_same_file(path: str, other: str) -> bool:
    """Return whether two names are those of one file, which need not exist.

    A device such as /dev/null never counts as the same file.
    """
    if not other or (is_special(path) and not stat.S_ISREG(path_mode(path))):
        return False
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError) as error:  # one of the files does not exist yet
        pass_on_handler_error(error)
        return os.path.realpath(path) == os.path.realpath(other)
