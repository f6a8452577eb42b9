"""Streams and events of the processor: work done in order on a thread, and marks in it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from smelt.errors import DeviceError
from smelt.types import Closing, override

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_EXIT_TIMEOUT_S = 10.0


class Mark:
    """One moment that comes: whoever waits for it is woken once it has come."""

    __slots__ = ("_reached", "time_ns")

    def __init__(self) -> None:
        self._reached = threading.Event()
        self.time_ns = 0

    @property
    def is_reached(self) -> bool:
        """Whether the moment has come."""
        return self._reached.is_set()

    def reach(self) -> None:
        """Let the moment come; once it has, this changes nothing."""
        if self._reached.is_set():
            return
        self.time_ns = time.perf_counter_ns()
        self._reached.set()

    def wait(self) -> None:
        """Wait until the moment has come."""
        self._reached.wait()


class CpuStream(Closing):
    """A queue of work that one thread does in order.

    Work that fails is reported by the next `synchronize`, which raises the very exception that the
    work raised; what was queued behind it is dropped.
    """

    def __init__(self) -> None:
        self._reset()
        _streams.add(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._tasks: deque[tuple[Callable[[], object], tuple[Mark, ...]]] = deque()
        self._is_working = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def submit(self, task: Callable[[], object], *marks: Mark) -> None:
        """Queue ``task``; ``marks`` are reached after it, also when it fails or is dropped.

        Raises:
            DeviceError: the stream is closed.
        """
        if self._process != os.getpid():
            self._reset()  # forked: the thread stayed with the parent
        with self._condition:
            if self._is_closed:
                raise DeviceError("this stream is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="smelt-stream", daemon=True)
                self._thread.start()
            self._tasks.append((task, marks))
            self._condition.notify_all()

    def query(self) -> bool:
        """Whether everything that was queued is done."""
        with self._condition:
            return not self._tasks and not self._is_working

    def synchronize(self) -> None:
        """Wait until everything that was queued is done.

        Raises:
            Whatever a queued task raised; once.
        """
        with self._condition:
            if threading.current_thread() is self._thread:
                raise DeviceError("a stream cannot wait for itself")
            while self._tasks or self._is_working:
                self._condition.wait()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self, event: CpuEvent) -> None:
        """Let later work wait until ``event``, as it is now, has come."""
        mark = event.mark
        if mark is not None and not mark.is_reached:
            self.submit(mark.wait)

    @override
    def close(self) -> None:
        """Finish what was queued and let the thread go. Again is harmless."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            if self._process == os.getpid():
                thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._tasks and not self._is_closed:
                    self._condition.wait()
                if not self._tasks:
                    return
                task, marks = self._tasks.popleft()
                self._is_working = True
                failed = self._error is not None
            if not failed:
                self._do(task)
            for mark in marks:
                mark.reach()
            del task
            with self._condition:
                self._is_working = False
                self._condition.notify_all()

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  (raised again by synchronize)
            _LOG.debug("work on a stream failed", exc_info=True)
            with self._condition:
                self._error = error

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
                mark.reach()
        if thread is not None and self._process == os.getpid():
            thread.join(_EXIT_TIMEOUT_S)


class CpuEvent:
    """A mark in a stream. Before it is first recorded it counts as reached."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: Mark | None = None

    def record(self, stream: CpuStream) -> None:
        """Mark the place in ``stream`` behind everything that is queued now."""
        mark = Mark()
        stream.submit(_nothing, mark)
        self.mark = mark

    def wait(self, stream: CpuStream) -> None:
        """Let later work of ``stream`` wait for the mark."""
        stream.wait(self)

    def query(self) -> bool:
        """Whether the mark is reached."""
        return self.mark is None or self.mark.is_reached

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
        if first is None or last is None or not (first.is_reached and last.is_reached):
            raise DeviceError("both events must be recorded and reached; synchronize first")
        return (last.time_ns - first.time_ns) / 1e6


def _nothing() -> None:
    return


_streams: weakref.WeakSet[CpuStream] = weakref.WeakSet()


@atexit.register
def _stop_streams() -> None:
    for stream in list(_streams):
        stream.abandon()
