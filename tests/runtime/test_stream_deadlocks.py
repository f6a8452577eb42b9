"""A task of a stream that waits for what waits for the task is refused; it once waited for ever."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import DeviceError
from smelt.runtime import Engine, Event, Stream
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
