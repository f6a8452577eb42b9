"""A task of a stream that waits for what waits for the task is refused; it once waited for ever."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cpu import CompletionFlag, CpuStream
from smelt.errors import DeviceError
from smelt.runtime import Engine, Event, Stream
from smelt.runtime._plan_executor import PlanExecutor
from tests.support.engines import COLUMNS, affine, affine_engine, batch_of

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def engine() -> Engine:
    return affine_engine()


@pytest.mark.parametrize("way", ["run", "execute", "close"])
@pytest.mark.parametrize("is_other", [False, True])
def test_a_task_cannot_wait_for_a_run_that_waits_for_the_task(
    engine: Engine, way: str, *, is_other: bool
) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    gate, raised = threading.Event(), list[Exception]()
    with engine.create_context() as context, Stream() as stream, Stream() as other:
        calls: dict[str, Callable[[], object]] = {
            "run": lambda: context.run({"x": x}),
            "execute": lambda: context.execute(1, [x, y.copy()]),
            "close": context.close,
        }

        def task() -> None:
            gate.wait(10)
            try:
                calls[way]()
            except DeviceError as error:
                raised.append(error)

        stream.submit(task)
        end = Event()
        end.record(stream)
        if is_other:
            other.wait(end)
        context.enqueue(1, [x, y], other if is_other else stream)
        gate.set()
        for each in (stream, other):
            try:
                each.synchronize()
            except DeviceError as error:
                raised.append(error)
        assert raised
        assert all("cannot wait for itself" in str(error) for error in raised)
        if way != "close":  # which the task may have done, where the other stream was refused
            np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))


def test_a_task_waits_for_a_run_that_is_before_it(engine: Engine) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    results: list[object] = []
    with engine.create_context() as context, Stream() as stream, Stream() as other:
        other.submit(lambda: time.sleep(0.02))
        context.enqueue(1, [x, y], other)
        stream.submit(lambda: results.append(context.run({"x": x})["y"]))
        stream.synchronize()
    np.testing.assert_array_equal(results[0], affine(x))


@pytest.mark.parametrize("is_other", [False, True])
def test_threads_that_enqueue_on_one_stream_wait_for_no_run_behind_their_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, *, is_other: bool
) -> None:
    """The run of a call that was overtaken in its submission once counted as the one before."""
    x, outputs = batch_of(1), [np.zeros((1, COLUMNS), np.float32) for _ in range(3)]
    gate, is_late, go_on = threading.Event(), threading.Event(), threading.Event()
    submit = CpuStream.submit
    with engine.create_context() as context, Stream() as stream, Stream() as other:
        late = threading.Thread(target=context.enqueue, args=(1, [x, outputs[0]], stream))

        def submit_late(self: CpuStream, *arguments: Any) -> None:
            if threading.current_thread() is late:
                is_late.set()
                go_on.wait(60)
            submit(self, *arguments)

        monkeypatch.setattr(CpuStream, "submit", submit_late)
        stream.submit(lambda: gate.wait(60))
        late.start()
        is_late.wait(60)
        context.enqueue(1, [x, outputs[1]], other if is_other else stream)
        context.enqueue(1, [x, outputs[2]], stream)
        go_on.set()
        late.join()
        gate.set()
        stream.synchronize()
        other.synchronize()
    for y in outputs:
        np.testing.assert_array_equal(y, affine(x))


def test_threads_that_forget_completed_runs_forget_no_other() -> None:
    """A thread once removed the first run after another thread had removed the one it looked at."""
    enqueued: deque[Any] = deque()

    class Forgotten:
        """A complete run, which another thread removes just when this one looks at it."""

        @property
        def is_signaled(self) -> bool:
            enqueued.popleft()
            return True

    pending = CompletionFlag()
    enqueued.extend([Forgotten(), pending])
    executor: Any = SimpleNamespace(enqueued=enqueued)
    PlanExecutor.forget_completed(executor)
    assert list(enqueued) == [pending]
