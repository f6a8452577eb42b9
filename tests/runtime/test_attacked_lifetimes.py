"""Contexts and streams that are closed, forked or interrupted where nobody expects it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.ir import Graph
from smelt.runtime._plan_executor import PlanExecutor
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X = np.ones((1, 8), np.float32)


@pytest.fixture
def engine() -> Iterator[smelt.Engine]:
    graph = Graph("product")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 8)))
    w = graph.add_constant(np.full((8, 8), 2, np.float32), "w")
    graph.outputs.append(graph.add(ops.MatMul(), x, w, name="y").output)
    with smelt.build(graph, tune="none") as made:
        yield made


class _Closing:
    def __init__(self, context: smelt.ExecutionContext) -> None:
        self.context = context

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Close the context whose run reports."""
        del name, milliseconds
        self.context.close()


def test_a_context_cannot_be_closed_from_within_its_run(engine: smelt.Engine) -> None:
    """The thread once waited for itself, for ever."""
    context = engine.create_context()
    context.profiler = _Closing(context)
    with pytest.raises(smelt.ContextError, match="during its own run"):
        context.run({"x": X})
    context.profiler = None
    assert (context.run({"x": X})["y"] == 16).all()
    context.close()


def test_a_queued_run_may_not_close_its_context_either(engine: smelt.Engine) -> None:
    context, made = engine.create_context(), np.zeros((1, 8), np.float32)
    context.profiler = _Closing(context)
    with smelt.Stream() as stream:
        context.enqueue(1, [X, made], stream)
        with pytest.raises(smelt.SmeltError, match=r"own run|wait for itself"):
            stream.synchronize()
    context.profiler = None
    assert (context.run({"x": X})["y"] == 16).all()


def _check(holds: object) -> None:
    assert holds


class _Queued:
    """A run that waits on a stream, behind a mark."""

    def __init__(self, engine: smelt.Engine) -> None:
        self.context = engine.create_context()
        self.stream = smelt.Stream()
        self.event = smelt.Event()
        self.gate, self.made = threading.Event(), np.zeros((1, 8), np.float32)
        self.stream.submit(lambda: self.gate.wait(120))
        self.event.record(self.stream)
        self.context.enqueue(1, [X, self.made], self.stream)

    def run_again(self) -> None:
        """Queue the run, and wait for it."""
        self.context.enqueue(1, [X, self.made], self.stream)
        self.stream.synchronize()
        assert (self.made == 16).all()


_ASKED: dict[str, Callable[[_Queued], object]] = {
    "synchronize": lambda queued: queued.stream.synchronize(),
    "query": lambda queued: _check(queued.stream.query() and queued.event.query()),
    "event": lambda queued: queued.event.synchronize(),
    "close": lambda queued: (queued.stream.close(), queued.context.close()),
    "run": lambda queued: _check((queued.context.run({"x": X})["y"] == 16).all()),
    "enqueue": lambda queued: queued.run_again(),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads, from 3.12
@pytest.mark.parametrize("what", _ASKED)
def test_a_forked_child_does_not_wait_for_what_the_parent_has_queued(
    engine: smelt.Engine, what: str
) -> None:
    queued = _Queued(engine)
    child = multiprocessing.get_context("fork").Process(target=_ASKED[what], args=(queued,))
    child.start()
    child.join(60)
    if hangs := child.exitcode is None:
        child.kill()
    queued.gate.set()
    queued.stream.synchronize()
    assert (queued.made == 16).all()
    assert not hangs
    assert child.exitcode == 0
    queued.stream.close()


@pytest.mark.parametrize("name", ["_use_new_weights", "_forget_addresses", "forget"])
def test_a_run_that_was_interrupted_uses_no_old_weights_later(
    engine: smelt.Engine, name: str
) -> None:
    """The context once believed that it had the new ones: its kernels read freed memory."""
    assert hasattr(PlanExecutor, name) or name == "forget"
    with engine.create_context() as context:
        context.run({"x": X})
        for factor in (3, 4):
            engine.refit({"w": np.full((8, 8), factor, np.float32)})
            with pytest.raises(KeyboardInterrupt):
                _interrupted_in(name, lambda: context.run({"x": X}))
            for _ in range(2):
                assert (context.run({"x": X})["y"] == 8 * factor).all()


def _interrupted_in(name: str, call: Any) -> None:
    """Call, with an interrupt where Python enters a function of a name."""

    def trace(frame: Any, event: str, argument: object) -> None:
        del argument
        if event == "call" and frame.f_code.co_name == name:
            sys.settrace(before)
            signal.raise_signal(signal.SIGINT)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)


def test_an_interrupted_submission_is_queued_or_not_and_nobody_waits_for_ever(
    engine: smelt.Engine,
) -> None:
    """The stream's thread once slept on behind a queued task that no one had woken it for."""
    made = np.zeros((1, 8), np.float32)
    for name in ("notify_all", "submit", "notify", "append"):
        with engine.create_context() as context, smelt.Stream() as stream:
            context.enqueue(1, [X, made], stream)
            stream.synchronize()
            with contextlib.suppress(KeyboardInterrupt):
                _interrupted_in(name, lambda: context.enqueue(1, [X, made], stream))
            stream.synchronize()
            assert stream.query()
            assert (context.run({"x": X})["y"] == 16).all()


def test_an_interrupted_refit_leaves_runs_and_files_with_the_same_weights(
    engine: smelt.Engine,
) -> None:
    for name in ("replace", "upload_weights", "refitted_network_arrays", "__enter__"):
        with contextlib.suppress(KeyboardInterrupt):
            _interrupted_in(name, lambda: engine.refit({"w": np.full((8, 8), 5, np.float32)}))
        with smelt.load(engine.serialize(sign=False)) as loaded:
            for runner in (engine, loaded):
                assert (runner.run({"x": X})["y"] == engine.run({"x": X})["y"]).all()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_a_handler_runs_the_engine_whose_run_it_interrupts(engine: smelt.Engine) -> None:
    """Both wanted the lock of the pool of contexts, which one thread could not take twice."""
    answers: list[bool] = []
    is_inside = False

    def handle(*_: object) -> None:
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            answers.append(bool((engine.run({"x": X}, contexts=4)["y"] == 16).all()))
            is_inside = False

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1.37e-3)
    try:
        while len(answers) < 300:
            assert (engine.run({"x": X}, contexts=4)["y"] == 16).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(answers)


class _SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing is said")


class _Array:
    def __array__(self, *_: object, **__: object) -> object:
        raise _SilentError


def test_an_error_that_cannot_say_what_it_is_is_told_by_its_type(engine: smelt.Engine) -> None:
    """It once left smelt as what its own words had raised."""
    with pytest.raises(smelt.BindingError, match="the array cannot be read: _SilentError"):
        engine.run({"x": _Array()})
    with pytest.raises(smelt.BindingError, match="_SilentError"):
        engine.refit({"w": _Array()})  # type: ignore[dict-item]
