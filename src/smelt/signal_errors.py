"""Tells errors of signal handlers from those that a block expects, so that these are not lost.

The interpreter calls a handler between any two instructions, and within calls that wait. An error
that the handler raises there, such as a TimeoutError for SIGALRM, may be of a class that the block
around it catches: a TimeoutError is an OSError.

The rule is in docs/api.md: a handler's OSError, and its error of a class that only a clause for all
errors catches, leaves smelt unchanged. A clause that catches either passes it on.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

__all__ = [
    "convert_own",
    "is_direct",
    "make_directory",
    "pass_on_handler_error",
    "path_mode",
    "suppress_own",
]


_SIGNALS: Final[Any] = import_module("_signal")
"""What `signal` wraps; the wrappers expect a ValueError and lose that of a handler."""


def is_direct(error: BaseException) -> bool:
    """Return whether the function that catches an error raised it, or one in C that it called.

    It is False for the error of any handler. Use it where the block calls no function in Python.
    """
    trace = error.__traceback__
    return trace is not None and trace.tb_next is None


def pass_on_handler_error(error: BaseException) -> None:
    """Raise the error of an installed handler: one that a block has caught, or a cause of it.

    A cause is the error of a handler that smelt has taken for one of its own; its class would lead
    to an error of smelt which is about nothing.
    """
    installed = [_SIGNALS.getsignal(number) for number in range(1, _SIGNALS.NSIG)]
    codes = [code for handler in installed if (code := _code_of(handler)) is not None]
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is known for known in seen):
        if _passed_through(cause, codes):
            raise cause
        seen.append(cause)
        cause = cause.__cause__


@contextmanager
def suppress_own(*kinds: type[Exception]) -> Generator[None]:
    """Suppress errors of the given classes in a block, except those of signal handlers."""
    try:
        yield
    except kinds as error:
        pass_on_handler_error(error)


@contextmanager
def convert_own(refuse: Callable[[Any], BaseException], *kinds: type[Exception]) -> Generator[None]:
    """Convert errors of the given classes in a block, except those of signal handlers.

    Args:
        refuse: makes the error to raise instead.
        kinds: the classes of the errors.
    """
    try:
        yield
    except kinds as error:
        pass_on_handler_error(error)
        raise refuse(error) from error


def path_mode(path: str | os.PathLike[str], *, follow_symlinks: bool = True) -> int:
    """Return the mode of what is at a path; 0 if nothing is there or it is not accessible.

    `os.path.isdir` and its like take the error of a handler for this answer.
    """
    try:
        return os.stat(path, follow_symlinks=follow_symlinks).st_mode
    except (OSError, ValueError) as error:
        pass_on_handler_error(error)
        return 0


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory and its parents where they do not exist; the mode is that of the last.

    `Path.mkdir` takes the error of a handler for that of a directory which exists.

    Raises:
        OSError: the directory cannot be created.
    """
    if stat.S_ISDIR(path_mode(path)):
        return
    if path.parent != path:
        make_directory(path.parent)
    try:
        os.mkdir(path, mode)
    except FileExistsError as error:
        pass_on_handler_error(error)
        if not stat.S_ISDIR(path_mode(path)):  # another process has not just created it
            raise


def _passed_through(error: BaseException, codes: Sequence[object]) -> bool:
    """Return whether an error left a function that has one of the given codes."""
    trace = error.__traceback__
    while trace is not None:
        if any(code is trace.tb_frame.f_code for code in codes):
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> object:
    """Return the code of a handler that is written in Python, or None."""
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)
