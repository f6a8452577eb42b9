"""Severities, the logger that an application may give us, and bridges to and from ``logging``.

Inside smelt every room logs to ``logging.getLogger(__name__)``, so the room's name is the logger's.
An application may instead (or also) implement `Logger`, as the GIE façade asks: `forward_to`
sends what the rooms say to it, and `LoggingLogger` is a `Logger` that writes into ``logging``.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Logger", "LoggingLogger", "Severity", "forward_to", "show_on_console"]


class Severity(IntEnum):
    """How much a message matters: the smaller, the graver."""

    INTERNAL_ERROR = 0
    """Unrecoverable: a bug in smelt."""
    ERROR = 1
    WARNING = 2
    """Something was wrong and was mended, or a default was taken."""
    INFO = 3
    VERBOSE = 4

    @property
    def level(self) -> int:
        """The level of ``logging`` that means the same."""
        return _LEVELS[self]

    @classmethod
    def of_level(cls, level: int) -> Severity:
        """Return the severity of a level of ``logging``; one in between counts as the lesser."""
        return next((severity for severity in cls if level >= severity.level), cls.VERBOSE)


_LEVELS: Final = {
    Severity.INTERNAL_ERROR: logging.CRITICAL,
    Severity.ERROR: logging.ERROR,
    Severity.WARNING: logging.WARNING,
    Severity.INFO: logging.INFO,
    Severity.VERBOSE: logging.DEBUG,
}
_ROOT: Final = "smelt"
_BRIDGED: Final = "smelt_bridged"
_lock = threading.Lock()
_attached: list[tuple[int, logging.Handler | None]] = []
"""Our handlers with their levels, after an entry for the level that stood before the first came."""


@runtime_checkable
class Logger(Protocol):
    """What an application implements to hear what smelt does."""

    def log(self, severity: Severity, message: str, /) -> None:
        """Take one message. An exception raised here ends the work that was being reported."""
        ...


class LoggingLogger:
    """A `Logger` that writes into ``logging``, by default under the name ``smelt``."""

    __slots__ = ("_minimum", "_target")

    def __init__(self, name: str = _ROOT, *, minimum: Severity = Severity.VERBOSE) -> None:
        """Write to the logger ``name``; drop what matters less than ``minimum``."""
        self._target = logging.getLogger(name)
        self._minimum = minimum

    def log(self, severity: Severity, message: str, /) -> None:
        """Write ``message`` at the level that ``severity`` stands for."""
        if severity <= self._minimum:
            self._target.log(Severity(severity).level, "%s", message, extra={_BRIDGED: True})


class _ForwardingHandler(logging.Handler):
    """Gives every record of smelt's rooms to a `Logger`."""

    def __init__(self, target: Logger, minimum: Severity) -> None:
        super().__init__(minimum.level)
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        # What a LoggingLogger wrote came from a Logger: sending it back would never end.
        if not getattr(record, _BRIDGED, False):
            self.target.log(Severity.of_level(record.levelno), record.getMessage())


@contextmanager
def forward_to(target: Logger, *, minimum: Severity = Severity.INFO) -> Generator[Logger]:
    """Send what smelt's rooms log, down to ``minimum``, to ``target`` while the block runs.

    Handlers that ``logging`` has already stay as they are. Blocks may nest and overlap in threads;
    every target then hears everything, for a log belongs to the process.
    """
    if isinstance(target, LoggingLogger):
        yield target  # it writes where the records go anyway
        return
    handler = _ForwardingHandler(target, minimum)
    _attach(handler)
    try:
        yield target
    finally:
        _detach(handler)


def show_on_console(minimum: Severity = Severity.WARNING) -> logging.Handler:
    """Write smelt's messages down to ``minimum`` to standard error; the last call counts."""
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
        if not _attached:
            _attached.append((root.level, None))
        _attached.append((handler.level, handler))
        root.addHandler(handler)
        _open_level(root)


def _detach(handler: logging.Handler) -> None:
    root = logging.getLogger(_ROOT)
    with _lock:
        root.removeHandler(handler)
        _attached[:] = [entry for entry in _attached if entry[1] is not handler]
        _open_level(root)
        if len(_attached) == 1:
            _attached.clear()


def _open_level(root: logging.Logger) -> None:
    """Let through what the most curious of our handlers wants, and what passed before."""
    before, *ours = [level for level, _ in _attached]
    root.setLevel(
        min([level for level in (before, *ours) if level], default=before) if ours else before
    )
