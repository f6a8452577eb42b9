"""Locks that neither a signal handler nor a forked child waits for in vain."""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A lock that its thread may take again, and that nobody holds in a forked child.

    A handler of a signal may interrupt the thread that has the lock, and want it too. Of a thread
    that had it when the process was forked, the child has only the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be held by nobody, as in a forked child."""
        self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
