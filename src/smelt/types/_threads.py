"""Background threads and gates, whose calls no interrupt can divide."""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from smelt.errors import DeviceError
from smelt.handler_errors import is_direct, pass_on_handler_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_A = TypeVar("_A")
_B = TypeVar("_B")


_RECHECK_S: Final = 1.0
"""Seconds after which a waiting thread looks again: an interrupt in another waiting thread may have
kept the gate's lock."""


_START_POLL_S: Final = 1e-3
"""Seconds between checks whether threads have begun, which takes them less than that."""


class Gate:
    """An event that happens once, for which threads wait.

    `threading.Event` waits in Python code around a lock; an interrupt there can be replaced by an
    error of the lock, or keep it locked for other threads.
    """

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        """Locked until the gate is open."""
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
        """Open the gate in a forked child, whatever other threads did with its lock meanwhile."""
        self.is_open = True  # a wait that a handler has forked from looks again
        self._lock = _thread.allocate_lock()

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait until the gate is open, at most ``seconds``; return whether it is open."""
        end = time.monotonic() + seconds
        while not self.is_open and (rest := end - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(rest, _RECHECK_S)):
                self._lock.release()
        return self.is_open


class BackgroundThread:
    """A thread that does not keep the process alive.

    `threading.Thread.start` waits in Python code until the thread runs. An interrupt during this
    wait leaves a running thread that its creator does not know, or is replaced by an error of a
    lock. Here the start is one call into the interpreter.
    """

    __slots__ = ("_ended", "ident", "native_id")

    def __init__(self, target: Callable[..., object], *arguments: Any) -> None:
        """Start a thread that calls ``target``.

        Raises:
            DeviceError: the operating system cannot start another thread.
        """
        self.ident = 0
        """Identifier of the thread (`threading.get_ident`); 0 until it runs."""
        self.native_id: int | None = None
        """Identifier of the thread in the operating system; None until it runs."""
        self._ended = Gate()
        try:
            _thread.start_new_thread(self._run, (target, arguments))
        except RuntimeError as error:
            pass_on_handler_error(error)
            raise DeviceError(
                f"cannot start a thread ({error}); use fewer threads, or raise the limits on "
                "processes and memory (ulimit -u, ulimit -v)"
            ) from error

    def _run(self, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            self.ident, self.native_id = threading.get_ident(), threading.get_native_id()
            target(*arguments)
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


def _popped(pending: deque[_A]) -> _A | None:
    """Remove and return the first item; None if another thread has taken the last one."""
    try:
        return pending.popleft()
    except IndexError as error:
        if not is_direct(error):
            raise
        return None


def parallel_map(function: Callable[[_A], _B], items: Sequence[_A], threads: int) -> list[_B]:
    """Return ``function`` of each item, in order, computed by several threads.

    The calling thread waits: an interrupt that arrives in a compiler's destructor would be lost. It
    computes what no thread has begun, so the call ends even if the system starts no thread, or one
    that ends before its first instruction, as it does when memory is exhausted. The executor of
    `concurrent.futures` waits for ever for such a thread.

    Raises:
        Any error of ``function``: the first one; further items are then not computed.
    """
    pending, results = deque(enumerate(items)), dict[int, _B]()
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            first = _popped(pending)
            if first is None:
                return
            number, item = first
            try:
                results[number] = function(item)
            except BaseException as error:  # noqa: BLE001  (raised below)
                errors.append(error)

    helpers: list[BackgroundThread] = []

    def join_begun() -> None:
        for helper in helpers:
            if helper.ident:
                helper.join()

    with suppress(DeviceError):  # fewer threads
        helpers += (BackgroundThread(work) for _ in range(min(threads, len(items))))
    try:
        end = time.monotonic() + _RECHECK_S
        while not all(helper.ident for helper in helpers) and time.monotonic() < end:
            time.sleep(_START_POLL_S)
        join_begun()
        work()  # what is left if no thread has begun
        join_begun()  # one that has begun later may have taken an item
    finally:
        pending.clear()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]
