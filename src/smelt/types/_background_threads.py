"""Background threads and latches, whose calls no interrupt can divide."""

from __future__ import annotations

import _thread
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from smelt.errors import DeviceError
from smelt.signal_errors import is_direct, pass_on_handler_error

_A = TypeVar("_A")
_B = TypeVar("_B")


_RECHECK_S: Final = 1.0
"""Seconds after which a waiting thread looks again: an interrupt in another waiting thread may have
kept the latch's lock."""


_START_POLL_S: Final = 1e-3
"""Seconds between checks whether a thread has begun, which takes it less than that."""
_START_LIMIT_S: Final = 30.0
"""Seconds after which a thread that has not begun is given up; it then does nothing."""


class Latch:
    """An event that happens once, for which threads wait.

    `threading.Event` waits in Python code around a lock; an interrupt there can be replaced by an
    error of the lock, or keep it locked for other threads.
    """

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        """Locked until the latch is open."""
        self._lock.acquire()
        self.is_open = False

    def open(self) -> None:
        """Let all waiting threads continue. Idempotent."""
        self.is_open = True
        try:
            self._lock.release()
        except RuntimeError as error:  # it was open before
            if not is_direct(error):
                raise

    def open_in_child(self) -> None:
        """Open the latch in a forked child, whatever other threads did with its lock meanwhile."""
        self.is_open = True  # a wait that a handler has forked from looks again
        self._lock = _thread.allocate_lock()

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait until the latch is open, at most ``seconds``; return whether it is open."""
        end = time.monotonic() + seconds
        while not self.is_open and (rest := end - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(rest, _RECHECK_S)):
                self._lock.release()
        return self.is_open


class BackgroundThread:
    """A thread that does not keep the process alive.

    `threading.Thread.start` waits in Python code around a lock until the thread runs. An interrupt
    during this wait leaves a running thread that its creator does not know, or is replaced by an
    error of the lock; and a thread that dies before its first instruction, as it does when memory
    is exhausted, is waited for forever. Here the thread begins its work on the creator's word: a
    single call into the interpreter, and only when the thread is known to run.
    """

    __slots__ = ("_begun", "_ended", "_word", "ident", "native_id")

    def __init__(self, target: Callable[..., object], *arguments: Any) -> None:
        """Start a thread that calls ``target``.

        Raises:
            DeviceError: the operating system cannot start another thread, or memory is exhausted.
        """
        self.ident = 0
        """Identifier of the thread (`threading.get_ident`)."""
        self.native_id: int | None = None
        """Identifier of the thread in the operating system."""
        self._begun, self._ended = Latch(), Latch()
        self._word = SimpleQueue[bool]()
        """Receives once whether the thread shall do its work."""
        is_begun = False
        try:
            work = partial(target, *arguments)
            held = weakref.ref(work)
            _thread.start_new_thread(self._run, (work,))
            del work  # only the thread holds it
            self._wait_for_begin(held)
            is_begun = True
        except RuntimeError as error:
            pass_on_handler_error(error)
            raise DeviceError(
                f"a thread cannot be started ({error}); use fewer threads, or raise the limits on "
                "processes and memory (ulimit -u, ulimit -v)"
            ) from error
        finally:
            self._word.put(is_begun)

    def _wait_for_begin(self, held: weakref.ref[partial[object]]) -> None:
        """Wait until the thread runs. Raises RuntimeError: it has ended before, or is too slow.

        The interpreter drops the work of a thread that has ended; ``held`` is then dead. A forked
        child has only the thread that a handler has interrupted here.
        """
        process, end = os.getpid(), time.monotonic() + _START_LIMIT_S
        poll_s = _START_POLL_S
        while not self._begun.wait(poll_s):
            poll_s *= 2  # each check takes the interpreter's lock from the thread that is to begin
            if held() is None or self._ended.is_open or os.getpid() != process:
                raise RuntimeError("it has ended before its first instruction")
            if time.monotonic() > end:
                raise RuntimeError(f"it has not begun in {_START_LIMIT_S:g} s")

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self.ident, self.native_id = threading.get_ident(), threading.get_native_id()
            self._begun.open()
            if self._word.get():
                work()
        finally:
            self._ended.open()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return not self._ended.is_open

    @property
    def is_current(self) -> bool:
        """Whether it is the calling thread."""
        return self.ident == threading.get_ident()

    def join(self, seconds: float = float("inf")) -> None:
        """Wait for the end of the thread, at most ``seconds``."""
        self._ended.wait(seconds)


def taken(take: Callable[..., _A], *arguments: object) -> _A | None:
    """Return what ``take``, a function in C, takes; None if another thread has taken the last."""
    try:
        return take(*arguments)
    except IndexError as error:
        if not is_direct(error):
            raise
        return None


def parallel_map(function: Callable[[_A], _B], items: Sequence[_A], threads: int) -> list[_B]:
    """Return ``function`` of each item, in order, computed by several threads.

    The calling thread waits: an interrupt that arrives in a compiler's destructor would be lost. If
    the system starts no thread, it computes everything itself.

    Raises:
        Any error of ``function``: the first one; further items are then not computed.
    """
    pending, results = deque(enumerate(items)), dict[int, _B]()
    errors: list[BaseException] = []
    working: list[Latch] = []
    """For each thread that takes items, what opens at its end."""

    def work() -> None:
        ended = Latch()
        working.append(ended)
        try:
            while not errors and (first := taken(pending.popleft)) is not None:
                number, item = first
                try:
                    results[number] = function(item)
                except BaseException as error:  # noqa: BLE001  (raised below)
                    errors.append(error)
        finally:
            ended.open()

    try:
        helpers: list[BackgroundThread] = []
        with suppress(DeviceError):  # fewer threads
            helpers += (BackgroundThread(work) for _ in range(min(threads, len(items))))
        for helper in helpers:
            helper.join()
        work()  # what is left if no thread was started
    finally:
        pending.clear()  # a thread that begins later finds nothing
        # After an interrupt, too: what threads write would be left as a draft. An interrupted call
        # may have started one that it does not know.
        for ended in working:
            ended.wait()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]
