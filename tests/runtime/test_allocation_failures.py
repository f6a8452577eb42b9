"""Every allocation fails in turn: an error of smelt's, nothing lost, and all goes on afterwards."""

from __future__ import annotations

import gc
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.builder import TuningEffort
from smelt.errors import SmeltError
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.runtime import Stream
from smelt.tuner import InNetworkEffort
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.cuda_engines import affine_gpu_engine
from tests.support.engines import COLUMNS, affine, batch_of
from tests.support.failing_allocations import (
    Countdown,
    Tracker,
    failing_host_memory,
    let_driver_fail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smelt.ir import Array
    from smelt.runtime import Engine, ExecutionContext
    from tests.support.cuda_driver_stub import StubDriver

MANY = 300
"""Rows that are neither copied to places of the context nor few pages."""


def failures_of(countdown: Countdown, work: Callable[[], None]) -> int:
    """Let each allocation of ``work`` fail in turn; how many there are.

    An error that is none of smelt's ends it, and a failure that nobody notices.
    """
    for number in count(1):
        countdown.set(number)
        try:
            work()
        except SmeltError:
            assert countdown.left <= 0, "an error, and no allocation had failed"
        else:
            assert countdown.left > 0, "an allocation failed, and nobody noticed"
        left = countdown.left
        countdown.set(0)
        if left > 0:
            return number - 1
    raise AssertionError


@pytest.fixture
def countdown() -> Iterator[Countdown]:
    made = Countdown()
    with failing_host_memory(made):
        yield made


def mixed_graph() -> Graph:
    """A step of Python's between native ones."""
    graph = Graph("mixed")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (SymbolicDim.symbol("n"), COLUMNS)))
    y = graph.add(ops.Hardmax(), graph.add(ops.Relu(), x, name="relu").output, name="max").output
    weights = graph.add_constant(np.ones((COLUMNS, COLUMNS), np.float32), "w")
    graph.outputs = [graph.add(ops.MatMul(), y, weights, name="product").output]
    return graph


def built(device: str = "cpu") -> Engine:
    shapes = ((1, COLUMNS), (4, COLUMNS), (MANY, COLUMNS))
    return smelt.build(mixed_graph(), device, tune="none", shapes={"x": shapes})


def right(rows: int) -> Array:
    (wanted,) = interpret(mixed_graph(), {"x": batch_of(rows)}).values()
    return wanted


def check_every_way(context: ExecutionContext, rows: int, wanted: Array, *, batch: int = 1) -> None:
    """Run it by name, by index and on a stream."""
    x, y = batch_of(rows), np.zeros_like(wanted)
    (made,) = context.run({"x": x}).values()
    np.testing.assert_array_equal(made, wanted)
    context.execute(batch, [x, y])
    np.testing.assert_array_equal(y, wanted)
    with Stream(context.engine.device) as stream:
        context.enqueue(batch, [x, y], stream)
        stream.synchronize()
    np.testing.assert_array_equal(y, wanted)


def test_a_build_without_memory_ends_in_an_error_of_ours(countdown: Countdown) -> None:
    assert failures_of(countdown, lambda: built().close()) > 0
    with built() as engine, engine.create_context() as context:
        check_every_way(context, 3, right(3))


def test_a_build_that_times_without_memory_ends_in_an_error_of_ours(
    countdown: Countdown, tmp_path: Path
) -> None:
    once = InNetworkEffort(extra_candidates=1, passes=1, runs=1, seconds=0.1)
    effort = TuningEffort(
        1, 1, seconds=5, seconds_per_trial=1e-4, min_sample_seconds=1e-6, network=once
    )
    caches = (tmp_path / str(number) for number in count())  # what is known is not timed again

    def build() -> None:
        shapes = {"x": (4, COLUMNS)}
        smelt.build(mixed_graph(), tune=effort, shapes=shapes, timing_cache=next(caches)).close()

    assert failures_of(countdown, build) > 5
    build()


def test_a_load_without_memory_ends_in_an_error_of_ours(countdown: Countdown) -> None:
    data = built().serialize()
    assert failures_of(countdown, lambda: smelt.load(data).close()) > 0
    with smelt.load(data) as engine, engine.create_context() as context:
        check_every_way(context, 3, right(3))


def test_a_context_without_memory_leaves_none_behind(countdown: Countdown) -> None:
    tracker = Tracker()
    with built() as engine:

        def create() -> None:
            engine.create_context(threads=3, tracker=tracker).close()

        assert failures_of(countdown, create) >= 3
        gc.collect()
        assert not tracker.balance
        create()


@pytest.mark.parametrize("rows", [5, MANY])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_without_memory_leaves_the_context_usable(
    countdown: Countdown, threads: int, rows: int
) -> None:
    tracker, wanted, number, left = Tracker(), right(rows), 0, 0
    with built() as engine:
        while left <= 0:
            number += 1
            # A new context each time: it keeps what its runs took.
            with engine.create_context(threads=threads, tracker=tracker) as context:
                countdown.set(number)
                try:
                    check_every_way(context, rows, wanted)
                except SmeltError:
                    assert countdown.left <= 0
                left = countdown.left
                countdown.set(0)
                check_every_way(context, rows, wanted)
    assert number > 3
    gc.collect()
    assert not tracker.balance


def test_the_null_device_loses_nothing_either(countdown: Countdown) -> None:
    tracker = Tracker()
    with built("null") as engine:

        def run() -> None:
            with engine.create_context(tracker=tracker) as context:
                context.run({"x": batch_of(4)})

        failures_of(countdown, run)
        gc.collect()
        assert not tracker.balance
        run()


def test_a_gpu_without_memory_is_an_error_of_ours_and_nothing_is_lost(
    stub: StubDriver, countdown: Countdown
) -> None:
    tracker, wanted = Tracker(), affine(batch_of(4))
    let_driver_fail(stub, countdown)

    def live() -> None:
        with affine_gpu_engine(stub) as engine, engine.create_context(tracker=tracker) as context:
            check_every_way(context, 4, wanted, batch=4)

    live()
    gc.collect()
    before = stub.live_kinds()
    assert failures_of(countdown, live) > 5
    gc.collect()
    assert not tracker.balance
    assert stub.live_kinds() == before
    live()
