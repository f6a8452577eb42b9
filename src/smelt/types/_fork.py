"""What a forked child resets: of the parent's threads it has only what they left behind."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def reset_in_child(reset: Callable[[T], None]) -> weakref.WeakSet[T]:
    """Return a set whose members ``reset`` is called with in each forked child."""
    members: weakref.WeakSet[T] = weakref.WeakSet()

    def reset_all() -> None:
        for member in list(members):
            reset(member)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset_all)
    return members


class ForkLock:
    """A lock that its thread may take again, and that nobody holds in a forked child.

    A handler of a signal may interrupt the thread that has the lock, and want it too.
    """

    def __init__(self) -> None:
        self.reset()
        _locks.add(self)

    def reset(self) -> None:
        """Be held by nobody."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks = reset_in_child(ForkLock.reset)
