"""CPU streams and events: work executed in order on a thread, and completion flags.

An interrupt (a signal handler that raises) may come behind any call of the main thread, and a
handler may use the very stream that it interrupts. So what must not be divided is one call into the
interpreter, such as `deque.append` or the release of a lock, and no thread needs a lock to execute
work.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from smelt.errors import DeviceError
from smelt.types import (
    BackgroundThread,
    Closeable,
    ForkLock,
    Latch,
    override,
    reset_in_child,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_LOG = logging.getLogger(__name__)
_EXIT_TIMEOUT_S: Final = 10.0
"""Seconds to wait for a stream's current task at interpreter exit."""


class CompletionFlag:
    """A flag that a stream sets once when the work before it is complete; threads wait on it."""

    __slots__ = ("_latch", "is_submitted", "stream", "time_ns")

    def __init__(self, stream: WorkQueue | None = None) -> None:
        self._latch = Latch()
        self.stream = stream
        """Queue whose thread sets the flag; None until the flag is submitted."""
        self.is_submitted = False
        """Whether the call that submits the flag has ended, which sets this for other calls."""
        self.time_ns = 0

    @property
    def is_signaled(self) -> bool:
        """Whether the flag is set."""
        return self._latch.is_open

    def signal(self) -> None:
        """Set the flag. Idempotent."""
        if not self._latch.is_open:
            self.time_ns = time.perf_counter_ns()
            self._latch.open()

    @property
    def is_awaited(self) -> bool:
        """Whether a task of a stream will set the flag; False before it is submitted and after."""
        stream = None if self.is_signaled else self.stream
        return stream is not None and stream.has_taken(self)

    def leave_parent(self) -> None:
        """Set the flag in a forked child, even if a waiting thread held its lock in the parent."""
        self._latch.open_in_child()

    def wait(self) -> None:
        """Wait until the flag is set.

        Raises:
            DeviceError: the flag is set only after the calling thread's own task: a deadlock.
        """
        if not self._latch.is_open:
            with _waiting_on_thread(self):
                if self.stream is not None:  # the wait may be in a handler that interrupts `submit`
                    self.stream.wake()
                self._latch.wait()


@contextmanager
def _waiting_on_thread(mark: CompletionFlag) -> Generator[None]:
    """Record what a thread waits for, and raise DeviceError on a cycle of waits.

    Each thread records its flag before it checks, so one thread of every cycle detects it.
    """
    own_queue = _own_queue()
    thread = threading.get_ident()
    outer = _awaited_flags.get(thread)  # a signal handler may wait within a wait
    try:
        _awaited_flags[thread] = mark
        if own_queue is not None:
            own_queue.awaited = mark
            if _depends_on(mark, own_queue):
                raise DeviceError(
                    "a stream cannot wait for itself: this task waits for work that is queued "
                    "behind it, or that waits for it; wait in another thread, or queue that work "
                    "before this task"
                )
        yield
    finally:
        if own_queue is not None:
            own_queue.awaited = None
        if outer is None:
            _awaited_flags.pop(thread, None)
        else:
            _awaited_flags[thread] = outer


def is_awaited_by(thread: int) -> bool:
    """Return whether a thread waits for the stream whose thread calls, directly or indirectly.

    A task that waits until ``thread`` has ended a run would wait forever.
    """
    own_queue = _own_queue()
    return own_queue is not None and _depends_on(_awaited_flags.get(thread), own_queue)


def _depends_on(mark: CompletionFlag | None, target: WorkQueue) -> bool:
    """Return whether a flag is set only after work of ``target``, directly or indirectly."""
    visited: set[WorkQueue] = set()
    while mark is not None and not mark.is_signaled:
        queue = mark.stream
        if queue is target:
            return True
        if queue is None or queue in visited:
            return False
        visited.add(queue)
        mark = queue.awaited
    return False


class DeferredError:
    """An error that is raised once, by the first `check`."""

    __slots__ = ("_pending",)

    def __init__(self, error: BaseException) -> None:
        self._pending = [error]
        """At most one error; `pop` is atomic."""

    @property
    def is_awaited(self) -> bool:
        """Whether the error was not raised yet."""
        return bool(self._pending)

    def check(self) -> None:
        """Raise the error, unless it was raised before."""
        error = taken(self._pending.pop)
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """One piece of work of a queue, with the flags that are set after it."""

    work: Callable[[], object]
    marks: tuple[CompletionFlag, ...]
    done: CompletionFlag
    """Set once the task is complete and removed."""


class WorkQueue:
    """The tasks of one stream, and the thread that executes them.

    The thread holds its queue and not the stream, so a stream that nobody holds is collected.
    """

    def __init__(self) -> None:
        self.lock = ForkLock()
        """Held while a task is added or the thread decides to end, and never by work."""
        self.is_closed = False
        self._reset()
        _queues.add(self)

    def _reset(self) -> None:
        self.tasks: deque[_Task] = deque()
        """Tasks that are not complete; the first may be executing."""
        self._wakes: SimpleQueue[None] = SimpleQueue()
        """An entry for each event that the thread must look at."""
        self._error: DeferredError | None = None
        """Error of the task that stopped the queue."""
        self.deferred: list[DeferredError] = []
        self._is_started = False
        self._executor = _thread.allocate_lock()
        """Held by the thread that executes tasks. An interrupt can cause a second thread to be
        started, which ends at once."""
        self._ended = Latch()
        self.awaited: CompletionFlag | None = None
        """Flag that the thread waits for, if any."""

    def submit(self, work: Callable[[], object], marks: tuple[CompletionFlag, ...]) -> None:
        """Add a task. Raises DeviceError: the queue is closed, or no thread can be started."""
        task = _Task(work, marks, CompletionFlag(self))
        with self.lock:
            if self.is_closed:
                raise DeviceError("this stream is closed")
            if not self._is_started:
                BackgroundThread(self._execute)
                self._is_started = True
            for mark in marks:
                mark.stream = self
            try:
                self.tasks.append(task)
            finally:  # an interrupt behind the first call does not prevent the second
                self._wakes.put(None)

    def raise_error(self) -> None:
        """Raise the error that stopped the queue or the oldest deferred one, each once."""
        error = self._error
        if error is not None:
            self._error = None
            error.check()
        while self.deferred and (failure := taken(self.deferred.pop, 0)) is not None:
            failure.check()

    def has_taken(self, mark: CompletionFlag) -> bool:
        """Return whether a task that is not complete sets a flag."""
        return any(mark in task.marks for task in list(self.tasks))

    def close(self) -> None:
        """Take no more tasks; the thread ends after those that it has."""
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        """Let the thread look for tasks. It may be called at any time."""
        self._wakes.put(None)

    def wait(self) -> None:
        """Wait until all tasks are complete. Raises DeviceError: they include the caller's."""
        while self.tasks:
            self.wait_for_last()

    def wait_for_last(self) -> None:
        """Wait for the task that was added last. Raises DeviceError: it waits for the caller's."""
        task = taken(self.tasks.__getitem__, -1)
        if task is not None:
            task.done.wait()

    def join(self, seconds: float = float("inf")) -> None:
        """Wait for the end of the thread of a closed queue, at most ``seconds``."""
        if self._is_started:
            self._ended.wait(seconds)

    def _execute(self) -> None:
        """Execute tasks until the queue is closed and empty."""
        if not self._executor.acquire(blocking=False):
            return
        try:
            while True:
                self._wakes.get()
                while self.tasks:
                    self._complete_first()
                if self.is_closed:
                    with self.lock:  # a call may be adding a task that it began before the end
                        if not self.tasks:
                            return
        finally:
            self._ended.open()

    def _complete_first(self) -> None:
        """Execute the first task and remove it, or only remove it if the queue is stopped."""
        task = self.tasks[0]
        if self._error is None:
            try:
                _thread_local.queue = self  # here: without memory for it the task has failed
                task.work()
            except BaseException as error:  # noqa: BLE001  (raised again by synchronize)
                _LOG.debug("a task of the stream failed", exc_info=True)
                self._error = DeferredError(error)
        for mark in task.marks:
            mark.signal()
        if self.tasks and self.tasks[0] is task:  # not where all were dropped meanwhile
            self.tasks.popleft()
        task.done.signal()

    def leave_parent(self) -> None:
        """Drop all tasks in a forked child, where the queue's thread does not exist."""
        dropped = list(self.tasks)
        executor, is_executing = self._executor, _own_queue() is self
        self._reset()
        if is_executing:  # a task has forked, and its thread goes on in the child
            self._executor, self._is_started = executor, True
        for task in dropped:
            for mark in (*task.marks, task.done):
                mark.leave_parent()

    def abandon(self) -> None:
        """Drop all tasks, wait for the current one, and end the thread."""
        dropped = list(self.tasks)
        self.tasks.clear()
        self.close()
        for task in dropped:
            for mark in (*task.marks, task.done):
                mark.signal()
        self.join(_EXIT_TIMEOUT_S)


class CpuStream(Closeable):
    """A queue of work that one thread executes in order.

    A task that raises stops the queue: later tasks are dropped, their flags are set, and the next
    `synchronize` raises the exception. A task whose error must not stop later work passes it to
    `defer` instead; `synchronize` raises it unless it was raised elsewhere before.
    """

    def __init__(self) -> None:
        self._queue = WorkQueue()
        # A stream that nobody holds completes its work, and then its thread ends.
        weakref.finalize(self, self._queue.close).atexit = False

    def submit(self, task: Callable[[], object], *marks: CompletionFlag) -> None:
        """Enqueue ``task``; ``marks`` are set after it, even if it fails or is dropped.

        Raises:
            DeviceError: the stream is closed, or the system cannot start a thread.
        """
        self._queue.submit(task, marks)

    def has_taken(self, mark: CompletionFlag) -> bool:
        """Return whether the stream sets a flag or has set it, after an interrupted submission."""
        return self._queue.has_taken(mark) or mark.is_signaled

    def query(self) -> bool:
        """Return whether all enqueued work is complete."""
        return not self._queue.tasks

    def synchronize(self) -> None:
        """Wait until all work that is enqueued now is complete.

        Raises:
            DeviceError: the call is in a task of the stream, or of a stream that it waits for.
            The error that a task raised or deferred, unless it was raised before; if there are
                several, the next calls raise the others.
        """
        self._queue.wait_for_last()
        self._queue.raise_error()

    def defer(self, failure: DeferredError) -> None:
        """Make `synchronize` raise a task's error, unless it is raised elsewhere before."""
        deferred = self._queue.deferred
        deferred[:] = [error for error in deferred if error.is_awaited]
        deferred.append(failure)

    def wait(self, event: CpuEvent) -> None:
        """Make later work wait for the last recording of ``event``."""
        mark = event.mark
        if mark is not None and not mark.is_signaled:
            self.submit(mark.wait)

    @override
    def close(self) -> None:
        """Complete enqueued work and end the thread. Idempotent.

        A signal handler that closes a stream within its `submit` does not wait for the thread,
        which may execute one task more.
        """
        queue = self._queue
        queue.close()
        if _own_queue() is not queue:
            queue.wait()
            if not queue.lock.is_held:
                queue.join()


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


def _own_queue() -> WorkQueue | None:
    """Return the queue whose tasks the calling thread executes, if any."""
    return getattr(_thread_local, "queue", None)


_queues = reset_in_child(WorkQueue.leave_parent)
_awaited_flags: dict[int, CompletionFlag] = {}
"""By the identifier of each thread that waits for a stream: what it waits for."""
_thread_local = threading.local()
"""Attribute ``queue``: the queue whose work the thread executes, if any."""


@atexit.register
def _stop_streams() -> None:
    for queue in list(_queues):
        queue.abandon()
