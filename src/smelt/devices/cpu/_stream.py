"""CPU streams and events: work executed in order on a thread, and completion flags."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smelt.errors import DeviceError
from smelt.types import Closeable, override, reset_in_child, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_LOG = logging.getLogger(__name__)
_EXIT_TIMEOUT_S = 10.0
"""Seconds to wait for a stream's current task at interpreter exit."""


class CompletionFlag:
    """A flag that a stream sets once when the work before it is complete; threads wait on it."""

    __slots__ = ("_signaled", "stream", "time_ns")

    def __init__(self, stream: CpuStream | None = None) -> None:
        self._signaled = threading.Event()
        self.stream = stream
        """Stream whose thread sets the flag; None until the flag is submitted."""
        self.time_ns = 0

    @property
    def is_signaled(self) -> bool:
        """Whether the flag is set."""
        return self._signaled.is_set()

    def signal(self) -> None:
        """Set the flag. Idempotent."""
        if self._signaled.is_set():
            return
        self.time_ns = time.perf_counter_ns()
        self._signaled.set()

    def leave_parent(self) -> None:
        """Set the flag in a forked child, even if its lock was held in the parent."""
        self._signaled = threading.Event()
        self.signal()

    def wait(self) -> None:
        """Wait until the flag is set.

        Raises:
            DeviceError: the flag is set only after the calling thread's own task: a deadlock.
        """
        if not self._signaled.is_set():
            with _waiting_on_thread(self):
                self._signaled.wait()


@contextmanager
def _waiting_on_thread(mark: CompletionFlag) -> Generator[None]:
    """Record what a thread waits for, and raise DeviceError on a cycle of waits.

    Each thread records its flag before it checks, so one thread of every cycle detects it.
    """
    own_stream: CpuStream | None = getattr(_thread_local, "stream", None)
    thread = threading.get_ident()
    outer = _awaited_flags.get(thread)  # a signal handler may wait within a wait
    try:
        _awaited_flags[thread] = mark
        if own_stream is not None:
            own_stream.awaited = mark
            _check_deadlock(mark, own_stream)
        yield
    except RuntimeError as error:
        # A handler that raises while `Condition.wait` takes its lock again leaves it unlocked; the
        # end of the ``with`` block then raises this instead of what the handler has raised.
        interrupt = error.__context__
        if interrupt is None or "un-acquired lock" not in str(error):
            raise
        raise interrupt from None
    finally:
        if own_stream is not None:
            own_stream.awaited = None
        if outer is None:
            _awaited_flags.pop(thread, None)
        else:
            _awaited_flags[thread] = outer


def is_awaited_by(thread: int) -> bool:
    """Return whether a thread waits for the stream whose thread calls, directly or indirectly.

    A task that waits until ``thread`` has ended a run would wait forever.
    """
    own_stream: CpuStream | None = getattr(_thread_local, "stream", None)
    return own_stream is not None and _depends_on(_awaited_flags.get(thread), own_stream)


def _check_deadlock(mark: CompletionFlag, own_stream: CpuStream) -> None:
    if _depends_on(mark, own_stream):
        raise DeviceError(
            "a stream cannot wait for itself: this task waits for work that is queued behind it, "
            "or that waits for it; wait in another thread, or queue that work before"
        )


def _depends_on(mark: CompletionFlag | None, target: CpuStream) -> bool:
    """Return whether a flag is set only after work of ``target``, directly or indirectly."""
    visited: set[CpuStream] = set()
    while mark is not None and not mark.is_signaled:
        stream = mark.stream
        if stream is target:
            return True
        if stream is None or stream in visited:
            return False
        visited.add(stream)
        mark = stream.awaited
    return False


class DeferredError:
    """An error that is raised once, by the first `check`."""

    __slots__ = ("_pending",)

    def __init__(self, error: Exception) -> None:
        self._pending = [error]
        """At most one error; `pop` is atomic."""

    @property
    def is_awaited(self) -> bool:
        """Whether the error was not raised yet."""
        return bool(self._pending)

    def check(self) -> None:
        """Raise the error, unless it was raised before."""
        try:
            error = self._pending.pop()
        except IndexError:
            return
        raise error


class CpuStream(Closeable):
    """A queue of work that one thread executes in order.

    A task that raises stops the queue: later tasks are dropped, their flags are set, and the next
    `synchronize` raises the exception. A task whose error must not stop later work passes it to
    `defer` instead; `synchronize` raises it unless it was raised elsewhere before.
    """

    def __init__(self) -> None:
        self._reset()
        _streams.add(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._tasks: deque[tuple[Callable[[], object], tuple[CompletionFlag, ...]]] = deque()
        self._is_working = False
        self._is_closed = False
        self._error: BaseException | None = None
        """Exception of the task that stopped the queue."""
        self._deferred: list[DeferredError] = []
        self._thread: threading.Thread | None = None
        self.awaited: CompletionFlag | None = None
        """Flag that the thread waits for, if any."""
        self._marks: tuple[CompletionFlag, ...] = ()
        """Flags of the current task."""

    def submit(self, task: Callable[[], object], *marks: CompletionFlag) -> None:
        """Enqueue ``task``; ``marks`` are set after it, even if it fails or is dropped.

        Raises:
            DeviceError: the stream is closed, or the system cannot start a thread.
        """
        with self._condition:
            if self._is_closed:
                raise DeviceError("this stream is closed")
            if self._thread is None:
                self._thread = start_thread(self._work, name="smelt-stream")
            for mark in marks:
                mark.stream = self
            # Last: after an interrupt before this line, nothing is queued that the thread misses.
            self._condition.notify_all()
            self._tasks.append((task, marks))

    def has_taken(self, mark: CompletionFlag) -> bool:
        """Return whether the stream sets a flag or has set it, after an interrupted submission."""
        with self._condition:
            queued = any(mark in marks for _, marks in self._tasks)
            return queued or mark in self._marks or mark.is_signaled

    def query(self) -> bool:
        """Return whether all enqueued work is complete."""
        with self._condition:
            return not self._tasks and not self._is_working

    def synchronize(self) -> None:
        """Wait until all enqueued work is complete.

        Raises:
            DeviceError: the call is in a task of the stream, or of a stream that it waits for.
            The error that a task raised or deferred, unless it was raised before; if there are
                several, the next calls raise the others.
        """
        idle = CompletionFlag(self)
        with _waiting_on_thread(idle), self._condition:
            while self._tasks or self._is_working:
                self._condition.wait()
            idle.signal()  # before another task can begin
            error, self._error = self._error, None
            if error is not None:
                raise error
            while self._deferred:
                self._deferred.pop(0).check()

    def defer(self, failure: DeferredError) -> None:
        """Make `synchronize` raise a task's error, unless it is raised elsewhere before."""
        with self._condition:
            self._deferred = [d for d in self._deferred if d.is_awaited]
            self._deferred.append(failure)

    def wait(self, event: CpuEvent) -> None:
        """Make later work wait for the last recording of ``event``."""
        mark = event.mark
        if mark is not None and not mark.is_signaled:
            self.submit(mark.wait)

    @override
    def close(self) -> None:
        """Complete enqueued work and end the thread. Idempotent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            with _waiting_on_thread(CompletionFlag(self)):
                thread.join()
            self._thread = None

    def _work(self) -> None:
        _thread_local.stream = self
        while True:
            with self._condition:
                while not self._tasks and not self._is_closed:
                    self._condition.wait()
                if not self._tasks:
                    return
                task, marks = self._tasks[0]
                self._marks = marks  # before the task is removed: a fork may occur in between
                self._tasks.popleft()
                self._is_working = True
                failed = self._error is not None
            if not failed:
                self._do(task)
            for mark in marks:
                mark.signal()
            del task
            with self._condition:
                self._is_working, self._marks = False, ()
                self._condition.notify_all()

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  (raised again by synchronize)
            _LOG.debug("a task of the stream failed", exc_info=True)
            with self._condition:
                self._error = error

    def leave_parent(self) -> None:
        """Drop enqueued work in a forked child, where the stream's thread does not exist."""
        dropped = [mark for _, marks in self._tasks for mark in marks]
        dropped += self._marks
        is_closed = self._is_closed
        self._reset()
        self._is_closed = is_closed
        for mark in dropped:
            mark.leave_parent()

    def abandon(self) -> None:
        """Drop enqueued work, wait for the current task, and close."""
        with self._condition:
            self._is_closed = True
            dropped = list(self._tasks)
            self._tasks.clear()
            self._condition.notify_all()
            thread = self._thread
        for _, marks in dropped:
            for mark in marks:
                mark.signal()
        if thread is not None:
            thread.join(_EXIT_TIMEOUT_S)


class CpuEvent:
    """A point in a stream's work. Before it is first recorded it counts as complete."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: CompletionFlag | None = None

    def record(self, stream: CpuStream) -> None:
        """Record the event behind all work that is enqueued on ``stream`` now."""
        mark = CompletionFlag()
        stream.submit(_nothing, mark)
        self.mark = mark

    def wait(self, stream: CpuStream) -> None:
        """Make later work of ``stream`` wait for the event."""
        stream.wait(self)

    def query(self) -> bool:
        """Return whether the event is complete."""
        return self.mark is None or self.mark.is_signaled

    def synchronize(self) -> None:
        """Wait until the event is complete."""
        if self.mark is not None:
            self.mark.wait()

    def elapsed(self, end: CpuEvent) -> float:
        """Return the milliseconds from this event to ``end``.

        Raises:
            DeviceError: one of the two is not recorded or not complete.
        """
        first, last = self.mark, end.mark
        if first is None or last is None or not (first.is_signaled and last.is_signaled):
            raise DeviceError("both events must be recorded and complete; synchronize first")
        return (last.time_ns - first.time_ns) / 1e6


def _nothing() -> None:
    return


_streams = reset_in_child(CpuStream.leave_parent)
_awaited_flags: dict[int, CompletionFlag] = {}
"""By the identifier of each thread that waits for a stream: what it waits for."""
_thread_local = threading.local()
"""Attribute ``stream``: the stream whose work the thread executes, if any."""


@atexit.register
def _stop_streams() -> None:
    for stream in list(_streams):
        stream.abandon()
