"""Streams and events of the processor: work done in order on a thread, and marks in it."""

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


class CompletionFlag:
    """A flag that a stream sets once, when the work before it is complete; threads wait for it."""

    __slots__ = ("_signaled", "stream", "time_ns")

    def __init__(self, stream: CpuStream | None = None) -> None:
        self._signaled = threading.Event()
        self.stream = stream
        """The stream whose thread sets the flag; None until it is submitted."""
        self.time_ns = 0

    @property
    def is_signaled(self) -> bool:
        """Whether the flag is set."""
        return self._signaled.is_set()

    def signal(self) -> None:
        """Set the flag; again is harmless."""
        if self._signaled.is_set():
            return
        self.time_ns = time.perf_counter_ns()
        self._signaled.set()

    def leave_parent(self) -> None:
        """In a forked child: set the flag, whoever held its lock in the parent."""
        self._signaled = threading.Event()
        self.signal()

    def wait(self) -> None:
        """Wait until the flag is set.

        Raises:
            DeviceError: only work behind the calling thread's own task sets it: a deadlock.
        """
        if not self._signaled.is_set():
            with _waiting_on_thread(self):
                self._signaled.wait()


@contextmanager
def _waiting_on_thread(mark: CompletionFlag) -> Generator[None]:
    """Note that a stream's thread waits; refuse what would wait for that very thread.

    Each thread first notes for what it waits, then looks: of those in a circle, one sees it.
    """
    mine: CpuStream | None = getattr(_of_thread, "stream", None)
    if mine is None:
        yield
        return
    mine.awaited = mark
    try:
        _refuse_deadlock(mark, mine)
        yield
    finally:
        mine.awaited = None


def _refuse_deadlock(mark: CompletionFlag | None, mine: CpuStream) -> None:
    met: set[CpuStream] = set()
    while mark is not None and not mark.is_signaled and mark.stream not in met | {None}:
        if mark.stream is mine:
            raise DeviceError(
                "a stream cannot wait for itself: this task waits for work that is queued behind "
                "it, or that waits for it; wait in another thread, or queue that work before"
            )
        assert mark.stream is not None  # noqa: S101  (the loop has ended)
        met.add(mark.stream)
        mark = mark.stream.awaited


class DeferredError:
    """A failure that is raised once, by whoever asks first."""

    __slots__ = ("_kept",)

    def __init__(self, error: Exception) -> None:
        self._kept = [error]
        """At most one; `pop` is one step, whatever other threads do."""

    @property
    def is_awaited(self) -> bool:
        """Whether nobody has heard of it yet."""
        return bool(self._kept)

    def check(self) -> None:
        """Raise the failure, unless it was raised before."""
        try:
            error = self._kept.pop()
        except IndexError:
            return
        raise error


class CpuStream(Closeable):
    """A queue of work that one thread does in order.

    A task that raises stops the queue: what is behind it is dropped, its marks are reached, and the
    next `synchronize` raises the very exception. A task whose failure is nobody else's matter gives
    it to `defer` instead: later work is done, and `synchronize` raises what nobody has heard of.
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
        """Of the task that stopped the queue."""
        self._deferred: list[DeferredError] = []
        self._thread: threading.Thread | None = None
        self.awaited: CompletionFlag | None = None
        """What the thread waits for just now."""
        self._marks: tuple[CompletionFlag, ...] = ()
        """Those of the task that is being done."""

    def submit(self, task: Callable[[], object], *marks: CompletionFlag) -> None:
        """Queue ``task``; ``marks`` are reached after it, also when it fails or is dropped.

        Raises:
            DeviceError: the stream is closed, or the system starts no more threads.
        """
        with self._condition:
            if self._is_closed:
                raise DeviceError("this stream is closed")
            if self._thread is None:
                self._thread = start_thread(self._work, name="smelt-stream")
            for mark in marks:
                mark.stream = self
            # Last: behind an interrupt before it nothing is queued, and nobody sleeps on what is.
            self._condition.notify_all()
            self._tasks.append((task, marks))

    def has_taken(self, mark: CompletionFlag) -> bool:
        """Whether the stream signals a mark, or has: of a submission that was interrupted."""
        with self._condition:
            queued = any(mark in marks for _, marks in self._tasks)
            return queued or mark in self._marks or mark.is_signaled

    def query(self) -> bool:
        """Whether everything that was queued is done."""
        with self._condition:
            return not self._tasks and not self._is_working

    def synchronize(self) -> None:
        """Wait until everything that was queued is done.

        Raises:
            DeviceError: a task of the stream waits for it, or one that it waits for.
            Whatever a queued task raised, or deferred and nobody has heard of; once. Of several
                failures the next calls raise the others.
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
        """Let `synchronize` raise what a task has failed with, unless somebody does before."""
        with self._condition:
            self._deferred = [d for d in self._deferred if d.is_awaited]
            self._deferred.append(failure)

    def wait(self, event: CpuEvent) -> None:
        """Let later work wait until ``event``, as it is now, has come."""
        mark = event.mark
        if mark is not None and not mark.is_signaled:
            self.submit(mark.wait)

    @override
    def close(self) -> None:
        """Finish what was queued and let the thread go. Again is harmless."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            with _waiting_on_thread(CompletionFlag(self)):
                thread.join()
            self._thread = None

    def _work(self) -> None:
        _of_thread.stream = self
        while True:
            with self._condition:
                while not self._tasks and not self._is_closed:
                    self._condition.wait()
                if not self._tasks:
                    return
                task, marks = self._tasks[0]
                self._marks = marks  # before the task is no longer queued: a fork may come between
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
        """In a forked child: the thread stayed with the parent, so what was queued is dropped."""
        dropped = [mark for _, marks in self._tasks for mark in marks]
        dropped += self._marks
        is_closed = self._is_closed
        self._reset()
        self._is_closed = is_closed
        for mark in dropped:
            mark.leave_parent()

    def abandon(self) -> None:
        """Drop what is queued, finish what is being done, and close."""
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
    """A mark in a stream. Before it is first recorded it counts as reached."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: CompletionFlag | None = None

    def record(self, stream: CpuStream) -> None:
        """Mark the place in ``stream`` behind everything that is queued now."""
        mark = CompletionFlag()
        stream.submit(_nothing, mark)
        self.mark = mark

    def wait(self, stream: CpuStream) -> None:
        """Let later work of ``stream`` wait for the mark."""
        stream.wait(self)

    def query(self) -> bool:
        """Whether the mark is reached."""
        return self.mark is None or self.mark.is_signaled

    def synchronize(self) -> None:
        """Wait until the mark is reached."""
        if self.mark is not None:
            self.mark.wait()

    def elapsed(self, end: CpuEvent) -> float:
        """Return the milliseconds from this mark to ``end``.

        Raises:
            DeviceError: one of the two is not recorded or not reached.
        """
        first, last = self.mark, end.mark
        if first is None or last is None or not (first.is_signaled and last.is_signaled):
            raise DeviceError("both events must be recorded and complete; synchronize first")
        return (last.time_ns - first.time_ns) / 1e6


def _nothing() -> None:
    return


_streams = reset_in_child(CpuStream.leave_parent)
_of_thread = threading.local()
"""The stream whose work the thread does, if any."""


@atexit.register
def _stop_streams() -> None:
    for stream in list(_streams):
        stream.abandon()
