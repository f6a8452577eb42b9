"""An interrupt behind any call leaves streams, engines and contexts as usable as before.

A signal handler that raises does so where the interpreter looks for signals: when a function begins
and behind each call. A profiling function is called at these points too, so the tests raise at each
of them in turn, and need no luck.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.devices.cpu import CpuEvent, CpuStream
from smelt.types import ForkLock
from tests.support.engines import COLUMNS, affine, affine_engine, batch_of

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = {"call", "c_return"}
"""A Python function begins; a function written in C has returned."""
SECONDS = 20
"""More than any wait here takes."""


class InterruptError(BaseException):
    """What a handler raises."""


def _is_interrupted(call: Callable[[], object], point: int) -> bool:
    """Call with an interrupt at the given point; return whether the call has so many points."""
    passed = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal passed
        passed += event in POINTS
        if passed == point and event in POINTS:
            sys.setprofile(None)
            raise InterruptError

    sys.setprofile(look)
    try:
        call()
    except InterruptError:
        return True
    finally:
        sys.setprofile(None)
    return passed >= point


def _in_thread(call: Callable[[], object]) -> None:
    """Call in another thread, which must not wait for ever."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "the call waits for ever"
    if errors:
        raise errors[0]


def _check_stream(stream: CpuStream) -> None:
    """Tasks run one at a time and in order, and `synchronize` waits for all."""
    log: list[str] = []

    def work(name: str) -> None:
        log.append(f"{name} begins")
        time.sleep(0.002)
        log.append(f"{name} ends")

    for name in "ab":
        stream.submit(lambda name=name: work(name))  # type: ignore[misc]
    _in_thread(lambda: stream.synchronize())
    assert log == ["a begins", "a ends", "b begins", "b ends"]
    assert stream.query()


STREAM_CALLS: dict[str, Callable[[CpuStream], object]] = {
    "submit": lambda stream: stream.submit(list),
    "synchronize": lambda stream: _submit_and_synchronize(stream),
    "query": lambda stream: stream.query(),
    "record": lambda stream: CpuEvent().record(stream),
    "wait": lambda stream: _record_and_wait(stream),
}


def _submit_and_synchronize(stream: CpuStream) -> None:
    stream.submit(list)
    stream.synchronize()


def _record_and_wait(stream: CpuStream) -> None:
    event = CpuEvent()
    event.record(stream)
    event.synchronize()


@pytest.mark.parametrize("name", STREAM_CALLS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_stream_works_in_order_after_an_interrupt(name: str, *, is_warm: bool) -> None:
    point = 0
    is_inside = True
    while is_inside:
        point += 1
        stream = CpuStream()
        if is_warm:
            stream.submit(list)
            stream.synchronize()
        is_inside = _is_interrupted(lambda: STREAM_CALLS[name](stream), point)  # noqa: B023
        _check_stream(stream)
        _in_thread(lambda: stream.close())  # noqa: B023
    assert point > 5 or name == "query"


def test_a_stream_that_was_interrupted_in_its_close_can_be_closed() -> None:
    point, is_inside = 0, True
    while is_inside:
        point += 1
        done: list[int] = []
        stream = CpuStream()
        stream.submit(lambda: time.sleep(0.002))
        stream.submit(lambda: done.append(1))  # noqa: B023
        is_inside = _is_interrupted(stream.close, point)
        _in_thread(lambda: stream.close())  # noqa: B023
        assert done == [1]
    assert point > 5


@pytest.fixture(scope="module")
def engine() -> smelt.Engine:
    return affine_engine()


ENGINE_CALLS: dict[str, Callable[[smelt.Engine], object]] = {
    "run": lambda engine: engine.run({"x": batch_of(1)}),
    "serialize": lambda engine: engine.serialize(),
}


@pytest.mark.parametrize("name", ENGINE_CALLS)
def test_an_engine_serves_other_threads_after_an_interrupt(engine: smelt.Engine, name: str) -> None:
    ENGINE_CALLS[name](engine)
    point, is_inside = 0, True
    while is_inside:
        point += 1
        is_inside = _is_interrupted(lambda: ENGINE_CALLS[name](engine), point)
        for call in ENGINE_CALLS.values():
            _in_thread(lambda: call(engine))  # noqa: B023
    assert point > 5


def _enqueue_and_wait(
    context: smelt.ExecutionContext, bindings: list[Any], stream: smelt.Stream
) -> None:
    context.enqueue(1, bindings, stream)
    stream.synchronize()


def test_a_context_runs_after_an_interrupt_of_any_call(engine: smelt.Engine) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    with engine.create_context(threads=2) as context, smelt.Stream() as stream:
        calls: list[Callable[[], object]] = [
            lambda: context.run({"x": x}),
            lambda: context.execute(1, [x, y]),
            lambda: _enqueue_and_wait(context, [x, y], stream),
        ]
        for call in calls:
            call()
            point, is_inside = 0, True
            while is_inside:
                point += 1
                is_inside = _is_interrupted(call, point)
                with contextlib.suppress(smelt.SmeltError):  # of the interrupted run
                    _in_thread(lambda: stream.synchronize())
                np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))
                y[...] = 0
                context.enqueue(1, [x, y], stream)
                _in_thread(lambda: stream.synchronize())
                np.testing.assert_array_equal(y, affine(x))
            assert point > 20


def _enter_and_leave(lock: ForkLock) -> None:
    with lock:
        pass


def test_a_lock_is_free_after_an_interrupt_at_its_block() -> None:
    lock, entered = ForkLock(), list[int]()

    def block() -> None:
        with lock:
            entered.append(1)

    point = 0
    while _is_interrupted(block, point := point + 1):
        assert not lock.is_held
        _in_thread(lambda: _enter_and_leave(lock))
    assert point > 2


def test_a_handler_that_uses_a_stream_within_its_own_calls_does_not_wait_for_itself() -> None:
    """The stream's thread needs no lock that the interrupted call could hold."""
    stream = CpuStream()
    stream.submit(list)
    stream.synchronize()
    inner = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal inner
        if event not in POINTS:
            return
        sys.setprofile(None)
        inner += 1
        _in_thread_of_handler()
        if inner < 500:
            sys.setprofile(look)

    def _in_thread_of_handler() -> None:
        event = CpuEvent()
        event.record(stream)
        event.synchronize()

    def calls() -> None:
        sys.setprofile(look)
        for _ in range(20):
            stream.submit(list)
            stream.query()
            stream.synchronize()
        sys.setprofile(None)

    _in_thread(lambda: calls())
    assert inner > 100
    stream.close()


def test_a_handler_that_runs_an_engine_within_a_lease_runs_without_workers(
    engine: smelt.Engine,
) -> None:
    x = batch_of(1)
    with engine.create_context(threads=2) as outer, engine.create_context(threads=2) as other:
        outer.run({"x": x})
        ran = 0

        def look(frame: Any, event: str, argument: Any) -> None:
            nonlocal ran
            if event not in POINTS:
                return
            sys.setprofile(None)
            np.testing.assert_array_equal(other.run({"x": x})["y"], affine(x))
            ran += 1
            sys.setprofile(look)

        def run() -> int:
            sys.setprofile(look)
            try:
                outer.run({"x": x})
            finally:
                sys.setprofile(None)
            return 1

        _in_thread(run)
        assert ran > 20


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are not listed here")
def test_streams_that_nobody_holds_end_their_threads() -> None:
    natives: list[int] = []
    for _ in range(20):
        stream = CpuStream()
        stream.submit(lambda: natives.append(threading.get_native_id()))
        stream.synchronize()
        del stream
    end = time.monotonic() + SECONDS
    while any(Path(f"/proc/self/task/{native}").exists() for native in natives):
        assert time.monotonic() < end, "a thread of a stream that nobody holds goes on"
        time.sleep(0.01)
