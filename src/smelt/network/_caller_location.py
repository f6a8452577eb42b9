"""Error messages with the file and line of the application's call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from smelt.errors import GraphError, SmeltError

if TYPE_CHECKING:
    from smelt.network._definition import NetworkBase

P = ParamSpec("P")
R = TypeVar("R")
NetworkT = TypeVar("NetworkT", bound="NetworkBase")

_PACKAGE = f"{Path(__file__).resolve().parent.parent}/"


def caller_location() -> str:
    """Return ``file:line`` of the innermost stack frame outside the smelt package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown location"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def atomic(method: Callable[Concatenate[NetworkT, P], R]) -> Callable[Concatenate[NetworkT, P], R]:
    """Decorate a method so that a failing call changes nothing and its error names the caller."""

    @functools.wraps(method)
    def wrapper(self: NetworkT, /, *args: P.args, **kwargs: P.kwargs) -> R:
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
