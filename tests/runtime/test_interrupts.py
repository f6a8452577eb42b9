"""An interrupt behind any call leaves streams, engines and contexts as usable as before.

A signal handler that raises does so where the interpreter looks for signals: when a function begins
and behind each call. A profiling function is called at these points too, so the tests raise at each
of them in turn, and need no luck.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.devices.cpu import CpuEvent, CpuStream
from smelt.ir import Graph
from smelt.types import DType, ForkLock, TensorType
from tests.support.engines import COLUMNS, affine, affine_engine, batch_of
from tests.support.raising_handlers import POINTS, RaisingHandler

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 20
"""More than any wait here takes."""


class InterruptError(BaseException):
    """What a handler raises."""


class HandledError(
    FileNotFoundError, TimeoutError, IndexError, RuntimeError, ValueError, OverflowError
):
    """An error of every class that blocks catch, in place of a handler's error of each of them."""


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


def _is_handled(call: Callable[[], object], point: int, handler: Callable[[], object]) -> bool:
    """Call, and at the given point let a handler work; return whether the call has the point.

    Either may be refused by an error of smelt's.
    """
    passed, is_handled = 0, False

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal passed, is_handled
        passed += event in POINTS
        if passed == point and event in POINTS:
            sys.setprofile(None)
            is_handled = True
            with contextlib.suppress(smelt.SmeltError):
                handler()

    sys.setprofile(look)
    try:
        with contextlib.suppress(smelt.SmeltError):
            call()
    finally:
        sys.setprofile(None)
    return is_handled


def _each_point(arrange: Callable[[], tuple[Callable[[], object], Callable[[], object]]]) -> int:
    """Let a handler work at each point of a call, both made anew; return the number of points."""
    point, handled = 0, [True]
    while handled[-1]:
        point += 1
        call, handler = arrange()
        _in_thread(lambda: handled.append(_is_handled(call, point, handler)))  # noqa: B023
    return point


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


HANDLED_CALLS = ("run", "run with contexts", "context.run", "execute", "enqueue", "create", "file")
HANDLED = [
    *((name, HandledError) for name in HANDLED_CALLS),
    *((name, KeyError) for name in ("context.run", "execute", "enqueue", "file")),
]
"""Calls, and errors of handlers. The standard library loses some itself: `os.environ`, which the
other calls ask, a KeyError, and pathlib a TypeError."""


def _handled_call(engine: smelt.Engine, name: str) -> Callable[[], object]:
    """Return a call, most of which read arguments of several kinds."""
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    context, stream = engine.create_context(threads=2), smelt.Stream()
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: engine.run({"x": x}),
        "run with contexts": lambda: engine.run({"x": x}, ["y"], contexts=2),
        "context.run": lambda: context.run({"x": x}, ("y",)),
        "execute": lambda: context.execute(1, [x, y]),
        "enqueue": lambda: _enqueue_and_wait(context, [x, y], stream),
        "create": lambda: engine.create_context(threads=1).close(),
        "file": lambda: engine.serialize(sign=True),
    }
    return calls[name]


@pytest.mark.parametrize(("name", "kind"), HANDLED)
@pytest.mark.slow
def test_the_error_of_a_handler_arrives_as_it_is(name: str, kind: type[Exception]) -> None:
    data = affine_engine().serialize()
    call, handler = _handled_call(smelt.load(data), name), RaisingHandler(kind)
    point: int = 0
    arrived: bool | None = True
    with handler.installed():
        while arrived is not None:
            point += 1
            if name == "file":  # the second call of one engine only returns the bytes of the first
                call = _handled_call(smelt.load(data), name)
            arrived = handler.is_passed_on(call, point)
            assert arrived is not False, f"{handler.raised} is lost at point {point}"
    assert point > 10


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


def test_a_handler_may_close_the_stream_whose_submit_it_interrupts() -> None:
    def arrange() -> tuple[Callable[[], object], Callable[[], object]]:
        stream = CpuStream()
        stream.submit(list)
        return lambda: stream.submit(list), stream.close

    assert _each_point(arrange) > 10


@pytest.mark.parametrize("name", ["enqueue", "run", "close"])
def test_a_handler_may_use_the_context_whose_enqueue_it_interrupts(
    engine: smelt.Engine, name: str
) -> None:
    x, y, z = batch_of(1), np.zeros((1, COLUMNS), np.float32), np.zeros((1, COLUMNS), np.float32)
    outer, inner = smelt.Stream(), smelt.Stream()

    def arrange() -> tuple[Callable[[], object], Callable[[], object]]:
        context = engine.create_context(threads=1)
        context.run({"x": x})
        handlers: dict[str, Callable[[], object]] = {
            "enqueue": lambda: _enqueue_and_wait(context, [x, z], inner),
            "run": lambda: context.run({"x": x}),
            "close": context.close,
        }
        return lambda: _enqueue_and_wait(context, [x, y], outer), handlers[name]

    assert _each_point(arrange) > 50


def test_an_enqueue_that_is_refused_leaves_the_run_before_it_awaited(engine: smelt.Engine) -> None:
    """The context once forgot the run that it had accepted, and closed before it."""
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    closed = smelt.Stream()
    closed.close()
    with smelt.Stream() as stream:
        context = engine.create_context()
        stream.submit(lambda: time.sleep(0.05))
        context.enqueue(1, [x, y], stream)
        event = smelt.Event()
        event.record(stream)
        with pytest.raises(smelt.SmeltError, match="closed"):
            context.enqueue(1, [x, y.copy()], closed, event)
        assert not event.query()
        context.close()
        np.testing.assert_array_equal(y, affine(x))


@pytest.mark.slow
def test_a_file_is_that_of_the_weights_that_run_even_if_a_handler_refits() -> None:
    weights = {"w": np.full((COLUMNS, COLUMNS), 2, np.float32)}
    data = _product_engine().serialize()

    def arrange() -> tuple[Callable[[], object], Callable[[], object]]:
        made.append(smelt.load(data))
        return made[-1].serialize, lambda: made[-1].refit(weights)

    made: list[smelt.Engine] = []
    assert _each_point(arrange) > 50
    x = {"x": batch_of(1)}
    for engine in made[:-1]:
        again = smelt.load(engine.serialize())
        np.testing.assert_array_equal(again.run(x)["y"], engine.run(x)["y"])


def _product_engine() -> smelt.Engine:
    graph = Graph("product")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, COLUMNS)))
    w = graph.add_constant(np.ones((COLUMNS, COLUMNS), np.float32), "w")
    graph.outputs.append(graph.add(ops.MatMul(), x, w, name="y").output)
    return smelt.build(graph, tune="none")


def test_a_context_that_is_closed_meanwhile_refuses_and_raises_nothing_else(
    engine: smelt.Engine,
) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)

    def arrange() -> tuple[Callable[[], object], Callable[[], object]]:
        context = engine.create_context()
        return lambda: context.execute(1, [x, y]), context.close

    assert _each_point(arrange) > 50


def test_a_handler_may_close_the_engine_that_is_being_closed() -> None:
    data = affine_engine().serialize()

    def arrange() -> tuple[Callable[[], object], Callable[[], object]]:
        engine = smelt.load(data)
        engine.run({"x": batch_of(1)})
        return engine.close, engine.close

    assert _each_point(arrange) > 10


def test_an_interrupt_that_somebody_keeps_does_not_keep_a_context(engine: smelt.Engine) -> None:
    """Its traceback has the frames of the call, and these have what the call has leased."""
    x, kept = batch_of(1), list[BaseException]()

    def run() -> None:
        try:
            engine.run({"x": x}, contexts=1)
        except InterruptError as error:
            kept.append(error)
            raise

    point = 1
    while _is_interrupted(run, point):
        _in_thread(lambda: engine.run({"x": x}, contexts=1))
        point += 1
    assert len(kept) > 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads, from 3.12
def test_a_child_that_is_forked_within_a_wait_returns_from_it() -> None:
    stream = CpuStream()
    parent, children = os.getpid(), list[int]()

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name == "wait" and not children:
            sys.setprofile(None)
            children.append(os.fork())
            if os.getpid() != parent:
                threading.Timer(SECONDS, os._exit, [1]).start()

    stream.submit(lambda: time.sleep(0.05))
    sys.setprofile(look)
    stream.synchronize()
    sys.setprofile(None)
    if os.getpid() != parent:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    stream.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_task_that_forks_goes_on_as_the_childs_only_thread_of_its_stream() -> None:
    stream = CpuStream()
    statuses: list[int] = []

    def task() -> None:
        child = os.fork()
        if child:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return
        threading.Timer(SECONDS, os._exit, [1]).start()
        threading.Thread(target=use).start()  # the task returns, and its thread goes on

    def use() -> None:
        try:
            _check_stream(stream)
        except BaseException:  # noqa: BLE001  (the parent sees the status)
            os._exit(2)
        os._exit(0)

    stream.submit(task)
    stream.synchronize()
    assert statuses == [0]
    stream.close()
