"""Error messages with the file and line of the application's call."""

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
    """Return ``file:line`` of the innermost stack frame outside the smelt package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown location"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Undoable(Protocol):
    """An object that can be rolled back to an earlier state."""

    def checkpoint(self) -> int:
        """Return an identifier of the present state."""
        ...

    def roll_back(self, checkpoint: int, /) -> None:
        """Undo everything that was done since ``checkpoint`` was returned."""
        ...


U = TypeVar("U", bound=Undoable)


def atomic(
    method: Callable[Concatenate[U, P], R],
) -> Callable[Concatenate[U, P], R]:
    """Decorate a method so that a failing call changes nothing and its error names the caller."""

    @functools.wraps(method)
    def wrapper(self: U, /, *args: P.args, **kwargs: P.kwargs) -> R:
        checkpoint = self.checkpoint()
        try:
            return method(self, *args, **kwargs)
        except SmeltError:
            self.roll_back(checkpoint)
            raise

    return located(wrapper)


def located(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its ``GraphError``s name the file and line of the caller."""

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
