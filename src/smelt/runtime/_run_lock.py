"""``RunLock``: one run at a time owns a context."""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from smelt.devices.cpu import is_awaited_by
from smelt.errors import ContextError
from smelt.types import out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S: Final = 2e-4
"""Seconds between checks whether a run in another thread is complete."""
_RUN: Final = "run"
"""Key of the current run's token."""
_T = TypeVar("_T")


class RunLock:
    """Lets one run at a time use a context, and knows whether the context is closed.

    It is a dictionary and not a lock of `threading`: it knows the owner's thread, and an interrupt
    between any two steps of a run leaves the context free.
    """

    __slots__ = ("_owner", "is_closed")

    def __init__(self) -> None:
        self.is_closed = False
        self.reset()

    def reset(self) -> None:
        """Free the context in a forked child, where the threads of the parent do not exist."""
        self._owner: dict[str, list[int]] = {}
        """The token of the current run under `_RUN`, if there is one. `setdefault` is atomic."""

    def hold(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Return the result of ``work``, which has the context for itself.

        Raises:
            ContextError: the context is busy or closed.
            DeviceError: memory is insufficient.
            Any error of the run.
        """
        token = [get_ident()]
        try:
            if self._owner.setdefault(_RUN, token) is not token or self.is_closed:
                self._raise_not_available(token)
            return work(*arguments)
        except MemoryError as error:
            raise out_of_memory("the run") from error
        finally:
            # No call here: an interrupt is handled at calls, and could leave the context acquired.
            if _RUN in self._owner and self._owner[_RUN] is token:
                del self._owner[_RUN]

    def hold_in_turn(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Wait until the current run is complete, and then do as `hold` does, closed or not.

        Raises:
            ContextError: the current run cannot end before this call returns.
            DeviceError: memory is insufficient.
            Any error of the run.
        """
        token = [get_ident()]
        try:
            while (owner := self._owner.setdefault(_RUN, token)) is not token:
                self._check_will_end(owner, token)
                time.sleep(_POLL_S)  # rare: a synchronous run in another thread
            return work(*arguments)
        except MemoryError as error:
            raise out_of_memory("the run") from error
        finally:
            if _RUN in self._owner and self._owner[_RUN] is token:
                del self._owner[_RUN]

    def _raise_not_available(self, token: list[int]) -> NoReturn:
        """Raise ContextError: the context is closed, or another run owns it."""
        self.check_open()
        if self._owner.get(_RUN) == token:
            raise ContextError(
                "this context is busy: the call is made during its own run in the same thread, "
                "from a signal handler or a callback; create another context for it"
            )
        raise ContextError(
            "this context is busy in another thread; create one context for each thread"
        )

    @staticmethod
    def _check_will_end(owner: list[int], token: list[int]) -> None:
        """Raise ContextError: the run of ``owner`` waits for the calling thread."""
        if owner == token:
            raise ContextError(
                "a context cannot be closed during its own run in the same thread; close it "
                "after the run has returned"
            )
        if is_awaited_by(owner[0]):  # the run's profiler or a signal handler enqueued this one
            raise ContextError(
                "this run was started within another run of the same context, which waits for it, "
                "so neither can end; create another context for a run that is started within a run"
            )

    def check_open(self) -> None:
        """Raise ContextError: the context is closed."""
        if self.is_closed:
            raise ContextError("this context is closed; create another from its engine")
