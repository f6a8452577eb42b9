"""A run that is started within another run of the same thread ends, in a result or an error.

A profiler and a signal handler run in the middle of a run. What would wait there for that very run
is refused.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.errors import ContextError
from smelt.runtime import ExecutionContext, Stream
from smelt.runtime._context_pool import ContextPool, _ContextLease  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.runtime import Engine

_X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)


@pytest.fixture(name="engine", scope="module")
def _engine() -> Iterator[Engine]:
    net = smelt.NetworkDefinition("relu", batch="explicit")
    tensor = net.add_activation(net.add_input("x", "float32", (2, 3)), "relu")
    net.mark_output(tensor)
    with smelt.build(net, tune="none") as engine:
        yield engine


class _Calls:
    """A profiler that calls a function at the first layer."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function: Callable[[], object] | None = function

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        del name, milliseconds
        function, self._function = self._function, None
        if function is not None:
            function()


def _ends(function: Callable[[], object]) -> Exception | None:
    """The error that a function ends with, in a thread that must not wait forever."""
    errors: list[Exception] = []

    def call() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  (returned)
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    return errors[0] if errors else None


@pytest.mark.parametrize("then", ["run", "execute", "close", "synchronize"])
def test_what_waits_for_a_run_enqueued_within_a_run_is_refused(engine: Engine, then: str) -> None:
    y = np.empty_like(_X)
    with engine.create_context() as context, Stream("cpu") as stream:
        calls: dict[str, Callable[[], Any]] = {
            "run": lambda: context.run({"x": _X}),
            "execute": lambda: context.execute(1, [_X, y]),
            "close": context.close,
            "synchronize": stream.synchronize,
        }

        def enqueue_and_wait() -> None:
            context.enqueue(1, [_X, y], stream)
            calls[then]()

        context.profiler = _Calls(enqueue_and_wait)
        error = _ends(lambda: context.run({"x": _X}))
        assert isinstance(error, ContextError)
        assert "another run of the same context" in str(error) or "during its own run" in str(error)
        context.profiler = None
        _ends(stream.synchronize)  # what the refused run has left, if anything
        _works(context)


def test_a_run_enqueued_within_a_run_follows_it(engine: Engine) -> None:
    y = np.empty_like(_X)
    with engine.create_context() as context, Stream("cpu") as stream:
        context.profiler = _Calls(lambda: context.enqueue(1, [_X, y], stream))
        assert _ends(lambda: context.run({"x": _X})) is None
        stream.synchronize()
        assert np.array_equal(y, np.maximum(_X, 0))


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_that_has_all_contexts_of_an_engine_is_refused_another(
    engine: Engine, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = ExecutionContext.run
    depth = 0

    def nested(context: ExecutionContext, *given: Any) -> Any:
        nonlocal depth
        depth += 1
        if depth <= count:
            engine.run({"x": _X}, contexts=count)
        return run(context, *given)

    monkeypatch.setattr(ExecutionContext, "run", nested)
    error = _ends(lambda: engine.run({"x": _X}, contexts=count))
    assert isinstance(error, ContextError)
    assert "in use by this thread" in str(error)
    monkeypatch.undo()
    assert np.array_equal(next(iter(engine.run({"x": _X}).values())), np.maximum(_X, 0))


def _works(context: ExecutionContext) -> None:
    (result,) = context.run({"x": _X}).values()
    assert np.array_equal(result, np.maximum(_X, 0))


def test_who_waits_for_a_context_does_not_keep_the_lease_that_it_waits_for(engine: Engine) -> None:
    """A call that an interrupt ends early frees its context by dropping its lease."""
    pool: Any = ContextPool(engine)
    lease = [_ContextLease()]
    pool._acquire(lease, 1)
    waiter = threading.Thread(target=lambda: pool._acquire([_ContextLease()], 1), daemon=True)
    waiter.start()
    time.sleep(0.2)  # it waits
    assert waiter.is_alive()
    del lease
    waiter.join(60)
    assert not waiter.is_alive()
    pool.close()
