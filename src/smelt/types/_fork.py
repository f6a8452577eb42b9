"""Resetting of locks and objects in a forked child, where the parent's other threads are gone."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def reset_in_child(reset: Callable[[T], None]) -> weakref.WeakSet[T]:
    """Return a weak set; ``reset`` is called with each of its members in every forked child."""
    members: weakref.WeakSet[T] = weakref.WeakSet()

    def reset_all() -> None:
        for member in list(members):
            reset(member)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset_all)
    return members


class ForkLock:
    """Reentrant lock that is free in a forked child.

    It is reentrant because a signal handler may interrupt the thread that holds the lock and
    acquire it again.
    """

    def __init__(self) -> None:
        self.reset()
        _locks.add(self)

    def reset(self) -> None:
        """Make the lock free, whichever thread holds it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks = reset_in_child(ForkLock.reset)
