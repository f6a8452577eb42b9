"""The group of all commands, and the reporting of errors."""

from __future__ import annotations

import io
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from smelt.cli._bench import bench
from smelt.cli._build import build
from smelt.cli._compare import compare
from smelt.cli._console import ConsoleLogger, open_streams, say
from smelt.cli._dla import dla
from smelt.cli._inspect import inspect
from smelt.cli._options import error_text
from smelt.cli._retune import retune
from smelt.cli._run import run
from smelt.cli._trust import trust
from smelt.errors import InternalError, MissingExtraError, SmeltError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BUILDING_COMMANDS: Final = frozenset(("build", "retune"))
"""Commands that always write an engine file."""


class _Interrupted(Exception):
    """KeyboardInterrupt in a command; click would print an empty line for the original exception.

    The text of the exception is appended to the message "interrupted".
    """


class _Commands(click.Group):
    """Group that lists its commands in the order in which they were added, and reports errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        del ctx
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the selected command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            is_building = ctx.invoked_subcommand in _BUILDING_COMMANDS
            raise _Interrupted("; no partial file is left" if is_building else "") from error

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line, report errors, and exit the process."""
        try:
            result = super().main(*args, **options | {"standalone_mode": False})
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001  (_end exits or raises it again)
            _end(error)
        raise SystemExit(result if isinstance(result, int) else 0)


def _end(error: BaseException) -> NoReturn:
    """Report an error and exit with its exit code; raise an unexpected exception again."""
    if isinstance(error, click.ClickException):
        text = io.StringIO()
        error.show(text)
        say(*text.getvalue().rstrip("\n").split("\n"))
        raise SystemExit(error.exit_code) from error
    if isinstance(error, _Interrupted | KeyboardInterrupt | click.Abort):
        say("interrupted" + str(error))
        raise SystemExit(130) from error
    if isinstance(error, BrokenPipeError):
        # The reader of the pipe has closed it. Without this, Python would report it again at exit.
        sys.stdout = None
        raise SystemExit(1) from error
    lines = _lines(error)
    if not lines:
        raise error
    if _is_debugging():
        traceback.print_exception(error)
    say(*lines)
    raise SystemExit(1) from error


_REPORT: Final = (
    "This is a bug in smelt, not in your input. Please report it to the maintainers of your smelt "
    "package, with the command, the output of `smelt --version`, and the output of the command "
    "with SMELT_LOG=debug."
)


def _lines(error: BaseException) -> Sequence[str]:
    """Return the lines that report an error; none for an unexpected exception."""
    if isinstance(error, SmeltError):
        return f"error: {error_text(error)}".split("\n")
    if isinstance(error, InternalError):
        return (f"internal error: {error}", _REPORT)
    if isinstance(error, ModuleNotFoundError):
        return (f"error: {MissingExtraError.from_import(error)}",)
    if isinstance(error, MemoryError):
        return ("error: there is not enough memory; a smaller batch or smaller shapes need less",)
    if isinstance(error, OSError):
        where = error.filename or "reading or writing failed"
        return (f"error: {where}: {error.strerror or error}",)
    return ()


def _is_debugging() -> bool:
    from smelt.config import log_level

    try:
        return log_level() == "verbose"
    except SmeltError:
        return False


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001  (click's signature)
    if value and not ctx.resilient_parsing:
        from smelt.engine import VERSION

        click.echo(f"smelt {VERSION}")
        ctx.exit()


@click.group(
    cls=_Commands,
    name="smelt",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="`smelt COMMAND --help` explains a command, with examples.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def commands() -> None:
    r"""Turn trained networks into engines, and run them.

    \b
      smelt build model.onnx -o model.engine
      smelt run model.engine --image cat.jpg --mean 104,117,123 --top 5
      smelt bench model.engine --profile
      smelt inspect model.engine
      smelt compare model.onnx --against onnxruntime

    \b
    Build on one machine, tune on another:
      smelt build model.onnx --device cuda:sm_90 --retunable -o model.engine
      smelt retune model.engine -o tuned.engine

    Settings come from the environment: SMELT_HOME, SMELT_THREADS, SMELT_LOG (error, warning, info,
    verbose) and others; the documentation lists them.
    """
    from smelt.config import log_level
    from smelt.logger import Severity, forward_to, show_on_console

    level = log_level()
    if level is not None:
        show_on_console(Severity[level.upper()])
    else:
        click.get_current_context().with_resource(
            forward_to(ConsoleLogger(), minimum=Severity.WARNING)
        )


def _keep_lines(command: click.Command) -> click.Command:
    """Convert the marks of unwrapped paragraphs, which are raw text in docstrings, for click."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for part in getattr(command, "commands", {}).values():
        _keep_lines(part)
    return command


for _command in (build, retune, run, bench, inspect, compare, trust, dla):
    commands.add_command(_keep_lines(_command))
_keep_lines(commands)


def main() -> None:
    """Run the command line of this process, and exit."""
    open_streams()
    commands(prog_name="smelt")
