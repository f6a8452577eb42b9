"""Errors that name the line of the caller's file."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from smelt.errors import GraphError, SmeltError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = f"{Path(__file__).resolve().parent.parent}/"


def caller_location() -> str:
    """The nearest file and line on the stack that are not smelt's own."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown location"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Undoable(Protocol):
    """What can go back to an earlier state."""

    def mark(self) -> int:
        """The present state."""
        ...

    def roll_back(self, mark: int, /) -> None:
        """Undo what came after a state."""
        ...


U = TypeVar("U", bound=Undoable)


def atomic(
    method: Callable[Concatenate[U, P], R],
) -> Callable[Concatenate[U, P], R]:
    """Let a method that fails leave nothing behind, and say where it was called."""

    @functools.wraps(method)
    def wrapper(self: U, /, *args: P.args, **kwargs: P.kwargs) -> R:
        mark = self.mark()
        try:
            return method(self, *args, **kwargs)
        except SmeltError:
            self.roll_back(mark)
            raise

    return located(wrapper)


def located(method: Callable[P, R]) -> Callable[P, R]:
    """Let the errors of a method say where it was called."""

    @functools.wraps(method)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except GraphError as error:
            where = caller_location()
            if error.message.endswith(f"[{where}]"):
                raise
            raise type(error)(f"{error.message} [{where}]", node=error.node) from error

    return wrapper
