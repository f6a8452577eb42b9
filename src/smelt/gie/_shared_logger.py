"""The logger that all existing builders and runtimes share.

The documented API treats the logger as a singleton. The first logger is therefore kept until the
last builder or runtime that uses it is destroyed or garbage-collected. If a different logger is
passed in the meantime, it is ignored, and both loggers receive a warning.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from smelt.errors import SmeltError
from smelt.gie._destroyable import Destroyable
from smelt.logger import Severity, forward_to
from smelt.types import ForkLock, override

if TYPE_CHECKING:
    from collections.abc import Generator

    from smelt.logger import Logger

_lock: Final = ForkLock()
_users: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_current: list[Logger] = []
"""The logger in use; empty if there is none."""


class LoggingFactory(Destroyable):
    """Creator of other objects, which logs to the shared logger until it is destroyed."""

    def __init__(self, logger: Logger) -> None:
        """Register a user of the shared logger.

        Args:
            logger: the logger to share if none is in use.

        Raises:
            SmeltError: the logger has no method ``log``.
        """
        if not callable(getattr(logger, "log", None)):
            kind = type(logger).__name__
            message = f"{kind} is not a logger: it must have a method log(severity, message)"
            raise SmeltError(message)
        with _lock:
            if not len(_users):
                _current[:] = [logger]
            _users.add(self)
            self.logger = _current[0]
        self._is_open = True
        if self.logger is not logger:
            message = "another logger is already in use and is kept; the new one is ignored"
            for receiver in (self.logger, logger):
                receiver.log(Severity.WARNING, message)

    @contextmanager
    def _logged(self, minimum: Severity = Severity.INFO) -> Generator[None]:
        """Forward the messages of the body to the logger, and its error too."""
        with forward_to(_SeverityAdapter(self.logger), minimum=minimum):
            try:
                yield
            except SmeltError as error:
                self.logger.log(Severity.ERROR, str(error))
                raise

    @override
    def destroy(self) -> None:
        """Destroy the object; what it created stays valid. A second call does nothing.

        When all are destroyed, the next logger is accepted.
        """
        self._is_open = False
        with _lock:
            _users.discard(self)
            if not len(_users):
                _current.clear()


class _SeverityAdapter:
    """Logger that passes messages on; GIE has no severity below INFO, so VERBOSE becomes INFO."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def log(self, severity: Severity, message: str, /) -> None:
        """Pass on one message."""
        self._logger.log(min(severity, Severity.INFO), message)
