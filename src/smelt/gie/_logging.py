"""One logger for all: every builder and runtime that is alive reports to the same one.

The documented API treats the logger as a singleton. The first one given therefore counts until the
last builder and runtime that use it are destroyed or gone; a different one given meanwhile is told
so, as is the one that stays.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from smelt.errors import SmeltError
from smelt.logger import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.logger import Logger

_lock: Final = threading.Lock()
_users: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_current: list[Logger] = []
"""The logger in use, or nothing."""


def adopt(user: object, logger: Logger) -> Logger:
    """Let ``user`` report to ``logger``, or to the one in use if there is one; return that.

    Raises SmeltError: the logger has no method ``log``.
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
        _tell(
            (chosen, logger), "another logger is already in use and is kept; the new one is ignored"
        )
    return chosen


def release(user: object) -> None:
    """Let ``user`` no longer count; after the last one another logger may come."""
    with _lock:
        _users.discard(user)
        if not len(_users):
            _current.clear()


def _tell(loggers: Iterable[Logger], message: str) -> None:
    for logger in loggers:
        logger.log(Severity.WARNING, message)


class SeverityAdapter:
    """Passes messages on; what is less than information has no severity there and becomes it."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def log(self, severity: Severity, message: str, /) -> None:
        """Pass one message on."""
        self._logger.log(min(severity, Severity.INFO), message)
