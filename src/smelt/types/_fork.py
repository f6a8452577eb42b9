"""Resetting of locks and objects in a forked child, where the parent's other threads are gone."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from contextlib import nullcontext

    # Type stubs declare the interpreter's lock final, which it is not, without these methods.
    class _RLock(nullcontext[None]):
        _is_owned: Callable[[], bool]
        _at_fork_reinit: Callable[[], None]

else:
    from _thread import RLock as _RLock

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


class ForkLock(_RLock):
    """Reentrant lock that is free in a forked child.

    It is reentrant because a signal handler may interrupt the thread that holds the lock and
    acquire it again. It adds no method to a ``with`` block: entering and leaving one are single
    calls into the interpreter, and an interrupt cannot come between them and the block. In a block
    of `threading.Condition` or of a lock written in Python it can, and then the lock is never
    released.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds the lock: it is in a signal handler or a callback."""
        return self._is_owned()

    def reset(self) -> None:
        """Make the lock free, unless the calling thread holds it: a handler may have forked."""
        if not self.is_held:
            self._at_fork_reinit()


_locks = reset_in_child(ForkLock.reset)
