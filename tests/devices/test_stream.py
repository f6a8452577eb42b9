"""Streams do their work in order, and events mark places in it."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from typing import Any

import pytest

from smelt.devices.cpu import (
    CpuEvent,
    CpuStream,
    DeferredError,
    _stream,  # pyright: ignore[reportPrivateUsage]
)
from smelt.errors import DeviceError, IndexRangeError
from smelt.runtime import Stream

NOTHING: list[int] = []


def test_work_is_done_in_order_beside_the_caller() -> None:
    done: list[int] = []
    gate = threading.Event()
    with CpuStream() as stream:
        stream.submit(gate.wait)
        stream.submit(lambda: done.append(0))
        for number in range(1, 20):
            stream.submit(functools.partial(done.append, number))
        assert done == []
        assert not stream.query()
        gate.set()
        stream.synchronize()
        assert done == list(range(20))
        assert stream.query()


def test_an_event_is_reached_when_all_before_it_is_done() -> None:
    gate = threading.Event()
    event = CpuEvent()
    assert event.query()
    with CpuStream() as stream:
        stream.submit(gate.wait)
        event.record(stream)
        assert not event.query()
        gate.set()
        event.synchronize()
        assert event.query()


def test_a_stream_waits_for_another_streams_event_as_it_was() -> None:
    order: list[str] = []
    gate = threading.Event()
    with CpuStream() as first, CpuStream() as second:
        first.submit(gate.wait)
        first.submit(lambda: order.append("first"))
        event = CpuEvent()
        event.record(first)
        event.wait(second)
        second.submit(lambda: order.append("second"))
        event.record(second)
        assert order == []
        gate.set()
        event.synchronize()
        assert order == ["first", "second"]


def test_events_measure_the_time_between_them() -> None:
    start, end = CpuEvent(), CpuEvent()
    with CpuStream() as stream:
        start.record(stream)
        stream.submit(lambda: time.sleep(0.02))
        end.record(stream)
        with pytest.raises(DeviceError, match="recorded and complete"):
            CpuEvent().elapsed(end)
        stream.synchronize()
    assert 19 < start.elapsed(end) < 60_000


def test_a_failure_is_raised_once_and_drops_what_was_behind_it() -> None:
    done: list[int] = []
    event = CpuEvent()
    with CpuStream() as stream:
        gate = threading.Event()
        stream.submit(gate.wait)
        stream.submit(lambda: NOTHING[1])
        stream.submit(lambda: done.append(1))
        event.record(stream)
        gate.set()
        with pytest.raises(IndexError):
            stream.synchronize()
        assert event.query()
        stream.synchronize()
        stream.submit(lambda: done.append(2))
        stream.synchronize()
    assert done == [2]


def test_a_deferred_failure_drops_nothing_and_is_raised_once_by_whoever_asks_first() -> None:
    done: list[int] = []
    failures = [DeferredError(ValueError(number)) for number in range(3)]
    with CpuStream() as stream:
        for number, failure in enumerate(failures):
            stream.submit(functools.partial(stream.defer, failure))
            stream.submit(functools.partial(done.append, number))
        _wait(stream)
        assert done == [0, 1, 2]
        with pytest.raises(ValueError, match="1"):
            failures[1].check()
        failures[1].check()
        for number in (0, 2):
            with pytest.raises(ValueError, match=str(number)):
                stream.synchronize()
        stream.synchronize()


def _wait(stream: CpuStream) -> None:
    """Wait without hearing of failures."""
    event = CpuEvent()
    event.record(stream)
    event.synchronize()


def test_a_closed_stream_finishes_its_work_and_takes_no_more() -> None:
    done: list[int] = []
    stream = CpuStream()
    for number in range(5):
        stream.submit(functools.partial(done.append, number))
    stream.close()
    stream.close()
    assert done == list(range(5))
    with pytest.raises(DeviceError, match="closed"):
        stream.submit(lambda: None)


def test_a_stream_does_not_wait_for_itself() -> None:
    with CpuStream() as stream:
        stream.submit(stream.synchronize)
        with pytest.raises(DeviceError, match="itself"):
            stream.synchronize()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_may_go_on_using_a_stream() -> None:
    stream = CpuStream()
    stream.submit(lambda: None)
    stream.synchronize()
    child = os.fork()
    if child == 0:
        done: list[int] = []
        stream.submit(lambda: done.append(1))
        stream.synchronize()
        os._exit(0 if done == [1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stream.close()


def test_what_is_enqueued_behind_a_synchronization_is_not_waited_for() -> None:
    gate, stop = threading.Event(), threading.Event()
    with CpuStream() as stream:
        stream.submit(gate.wait)
        waiter = threading.Thread(target=stream.synchronize)
        waiter.start()
        time.sleep(0.05)
        stream.submit(stop.wait)
        gate.set()
        waiter.join(20)
        is_waiting = waiter.is_alive()
        stop.set()
    assert not is_waiting


def test_what_cannot_be_called_is_no_task() -> None:
    task: Any = None
    with Stream() as stream, pytest.raises(DeviceError, match="must be a function"):
        stream.submit(task)


def test_an_index_error_of_a_handler_within_a_synchronization_is_raised() -> None:
    """The wait once took it for that of its own list of tasks."""
    gate = threading.Event()
    caller = threading.get_ident()

    def interrupt(number: int, frame: object) -> None:
        raise IndexRangeError("an index of the handler's own run")

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with CpuStream() as stream:
            stream.submit(lambda: time.sleep(0.05))
            stream.submit(lambda: signal.pthread_kill(caller, signal.SIGUSR1))
            stream.submit(gate.wait)
            with pytest.raises(IndexRangeError):
                stream.synchronize()
            gate.set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_thread_without_memory_for_its_own_state_fails_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread once ended with its tasks undone, and whoever waited for them waited forever."""

    class NoMemory:
        def __setattr__(self, name: str, value: object) -> None:
            raise MemoryError

    monkeypatch.setattr(_stream, "_thread_local", NoMemory())
    stream = CpuStream()
    stream.submit(list)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            stream.synchronize()
        except MemoryError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(20)
    assert len(raised) == 1
    stream.close()
