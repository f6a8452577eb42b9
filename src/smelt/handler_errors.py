"""Tells errors of signal handlers from those that a block expects, so that these are not lost.

The interpreter calls a handler between any two instructions, and within calls that wait. An error
that the handler raises there, such as a TimeoutError for SIGALRM, may be of a class that the block
around it catches: a TimeoutError is an OSError.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["is_direct", "pass_on_handler_error", "suppress_own"]


_SIGNALS: Final[Any] = import_module("_signal")
"""What `signal` wraps; the wrappers expect a ValueError and lose that of a handler."""


def is_direct(error: BaseException) -> bool:
    """Return whether the function that catches an error raised it, or one in C that it called.

    It is False for the error of any handler. Use it where the block calls no function in Python.
    """
    trace = error.__traceback__
    return trace is not None and trace.tb_next is None


def pass_on_handler_error(error: BaseException) -> None:
    """Raise an error that a block has caught, if it passed through an installed handler."""
    installed = [_SIGNALS.getsignal(number) for number in range(1, _SIGNALS.NSIG)]
    codes = [code for handler in installed if (code := _code_of(handler)) is not None]
    trace = error.__traceback__
    while trace is not None:
        if any(code is trace.tb_frame.f_code for code in codes):
            raise error
        trace = trace.tb_next


@contextmanager
def suppress_own(*kinds: type[Exception]) -> Generator[None]:
    """Suppress errors of the given classes in a block, except those of signal handlers."""
    try:
        yield
    except kinds as error:
        pass_on_handler_error(error)


def _code_of(handler: Any) -> object:
    """Return the code of a handler that is written in Python, or None."""
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)
