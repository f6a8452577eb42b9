"""The logger that all existing builders and runtimes share.

The documented API treats the logger as a singleton. The first logger is therefore kept until the
last builder or runtime that uses it is destroyed or garbage-collected. If a different logger is
passed in the meantime, it is ignored, and both loggers receive a warning.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from smelt.errors import SmeltError
from smelt.logger import Severity
from smelt.types import ForkLock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.logger import Logger

_lock: Final = ForkLock()
_users: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_current: list[Logger] = []
"""The logger in use; empty if there is none."""


def adopt(user: object, logger: Logger) -> Logger:
    """Register a user of the shared logger and return that logger.

    Args:
        user: a builder or runtime.
        logger: the logger to share if none is in use.

    Raises:
        SmeltError: the logger has no method ``log``.
    """
    if not callable(getattr(logger, "log", None)):
        kind = type(logger).__name__
        raise SmeltError(f"{kind} is not a logger: it must have a method log(severity, message)")
    with _lock:
        if not len(_users):
            _current[:] = [logger]
        _users.add(user)
        chosen = _current[0]
    if chosen is not logger:
        _warn(
            (chosen, logger), "another logger is already in use and is kept; the new one is ignored"
        )
    return chosen


def release(user: object) -> None:
    """Remove a user of the shared logger; without users, the next logger is accepted."""
    with _lock:
        _users.discard(user)
        if not len(_users):
            _current.clear()


def _warn(loggers: Iterable[Logger], message: str) -> None:
    for logger in loggers:
        logger.log(Severity.WARNING, message)


class SeverityAdapter:
    """Logger that passes messages on; GIE has no severity below INFO, so VERBOSE becomes INFO."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def log(self, severity: Severity, message: str, /) -> None:
        """Pass on one message."""
        self._logger.log(min(severity, Severity.INFO), message)
