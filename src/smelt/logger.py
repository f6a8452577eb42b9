"""Severities, the `Logger` protocol, and bridges between `Logger` and Python's ``logging``.

Each module of smelt logs to ``logging.getLogger(__name__)``. An application may also implement
`Logger`, which the GIE façade requires: `forward_to` sends smelt's log records to a `Logger`, and
`LoggingLogger` is a `Logger` that writes into ``logging``.
"""

from __future__ import annotations

import _thread
import logging
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Logger", "LoggingLogger", "Severity", "forward_to", "show_on_console"]


class Severity(IntEnum):
    """Severity of a message; smaller values are more severe."""

    INTERNAL_ERROR = 0
    """Unrecoverable error caused by a bug in smelt."""
    ERROR = 1
    WARNING = 2
    """A problem was corrected, or a default was used."""
    INFO = 3
    VERBOSE = 4

    @property
    def level(self) -> int:
        """Corresponding level of ``logging``."""
        return _LEVELS[self]

    @classmethod
    def of_level(cls, level: int) -> Severity:
        """Return the severity of a level of ``logging``, rounded to the less severe one."""
        return next((severity for severity in cls if level >= severity.level), cls.VERBOSE)


_LEVELS: Final = {
    Severity.INTERNAL_ERROR: logging.CRITICAL,
    Severity.ERROR: logging.ERROR,
    Severity.WARNING: logging.WARNING,
    Severity.INFO: logging.INFO,
    Severity.VERBOSE: logging.DEBUG,
}
_ROOT: Final = "smelt"
"""Name of the parent of all loggers of smelt."""
_BRIDGED: Final = "smelt_bridged"
"""Attribute that marks the log records that `LoggingLogger` writes."""
_lock = _thread.RLock()  # a signal handler may log
_attached: list[tuple[int, logging.Handler | None]] = []
"""Level and handler of each attached handler, after an entry with the logger's original level."""


@runtime_checkable
class Logger(Protocol):
    """Interface that an application implements to receive smelt's messages."""

    def log(self, severity: Severity, message: str, /) -> None:
        """Receive one message. An exception raised here aborts the operation that logged it."""
        ...


class LoggingLogger:
    """A `Logger` that writes into ``logging``, by default under the name ``smelt``."""

    __slots__ = ("_minimum", "_target")

    def __init__(self, name: str = _ROOT, *, minimum: Severity = Severity.VERBOSE) -> None:
        """Write to the logger ``name``; discard messages less severe than ``minimum``."""
        self._target = logging.getLogger(name)
        self._minimum = minimum

    def log(self, severity: Severity, message: str, /) -> None:
        """Write ``message`` at the level of ``severity``."""
        if severity <= self._minimum:
            self._target.log(Severity(severity).level, "%s", message, extra={_BRIDGED: True})


class _ForwardingHandler(logging.Handler):
    """Handler that passes smelt's log records to a `Logger`."""

    def __init__(self, target: Logger, minimum: Severity) -> None:
        super().__init__(minimum.level)
        self.target = target
        self.has_ended = False

    def emit(self, record: logging.LogRecord) -> None:
        # A record written by a LoggingLogger is not forwarded: that could recurse without end.
        if not self.has_ended and not getattr(record, _BRIDGED, False):
            self.target.log(Severity.of_level(record.levelno), record.getMessage())


@contextmanager
def forward_to(target: Logger, *, minimum: Severity = Severity.INFO) -> Generator[Logger]:
    """Send smelt's messages of severity ``minimum`` or above to ``target`` within the block.

    Existing handlers of ``logging`` are not changed. Blocks may nest and overlap in threads; each
    target then receives the messages of all threads, because logging is global to the process.
    """
    if isinstance(target, LoggingLogger):
        yield target  # its output is ``logging``, which has the records already
        return
    handler = _ForwardingHandler(target, minimum)
    try:
        _attach(handler)
        yield target
    finally:
        handler.has_ended = True  # even if a signal handler raises before the next statement
        _detach(handler)


def show_on_console(minimum: Severity = Severity.WARNING) -> logging.Handler:
    """Write smelt's messages of severity ``minimum`` or above to standard error.

    A later call replaces the handler of an earlier one.
    """
    root = logging.getLogger(_ROOT)
    handler = logging.StreamHandler()
    handler.set_name("smelt-console")
    handler.setLevel(minimum.level)
    handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
    for old in [other for other in root.handlers if other.get_name() == handler.get_name()]:
        _detach(old)
    _attach(handler)
    return handler


def _attach(handler: logging.Handler) -> None:
    root = logging.getLogger(_ROOT)
    with _lock:
        original = [] if _attached else [(root.level, None)]
        _attached.extend([*original, (handler.level, handler)])
        root.addHandler(handler)
        _open_level(root)


def _detach(handler: logging.Handler) -> None:
    """Remove a handler, and those of ended blocks whose removal was interrupted."""
    root = logging.getLogger(_ROOT)
    with _lock:
        attached = [other for _, other in _attached]
        ended = {h for h in attached if isinstance(h, _ForwardingHandler) and h.has_ended}
        removed: set[logging.Handler] = {handler, *ended}
        for old in removed:
            root.removeHandler(old)
        # One call into C, so that no handler of a signal attaches what this would remove again.
        _attached[:] = filter(removed.isdisjoint, _attached)
        _open_level(root)
        if len(_attached) == 1:
            _attached.clear()


def _open_level(root: logging.Logger) -> None:
    """Set the logger's level to the lowest of its original level and the handlers' levels.

    The original level is restored when no handler is attached.
    """
    levels = [level for level, _ in _attached]
    if levels:  # empty if a handler of a signal has restored the level meanwhile
        root.setLevel(min(filter(None, levels), default=logging.NOTSET))
