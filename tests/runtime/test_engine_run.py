"""`Engine.run`: any thread, a few contexts, and a choice of outputs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.builder import build
from smelt.devices.cuda import CudaArray, CudaMemory, cuda_device
from smelt.errors import BindingError, ContextError
from smelt.importers import network_from_onnx
from smelt.runtime import ExecutionContext
from smelt.types import DType
from tests.support.cuda_engines import affine_gpu_engine
from tests.support.engines import affine, affine_engine, batch_of, counting_header
from tests.support.small_models import inception_model

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from smelt.runtime import Engine
    from tests.support.cuda_driver_stub import StubDriver


@pytest.fixture(autouse=True, params=["small arrays copied", "every array in place"])
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for arrays of any size; those here are small."""
    if request.param == "every array in place":
        monkeypatch.setattr("smelt.runtime._staging.STAGED_BYTES", 0)


@pytest.fixture
def engine() -> Generator[Engine]:
    with affine_engine() as engine:
        yield engine


class Gate:
    """Holds every run until it is opened, and counts those that are inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.contexts: set[ExecutionContext] = set()
        self.most, self._inside, self._lock = 0, 0, threading.Lock()
        really = ExecutionContext.run

        def run(context: ExecutionContext, inputs: Mapping[str, Any], outputs: Any) -> Any:
            with self._lock:
                self.contexts.add(context)
                self._inside += 1
                self.most = max(self.most, self._inside)
            try:
                assert self.opened.wait(10)
                return really(context, inputs, outputs)
            finally:
                with self._lock:
                    self._inside -= 1

        monkeypatch.setattr(ExecutionContext, "run", run)

    def wait_for(self, count: int) -> None:
        """Return when so many runs are inside."""
        end = time.monotonic() + 10
        while self._inside < count and time.monotonic() < end:
            time.sleep(0.001)
        assert self._inside == count


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_any_number_of_threads_may_run_an_engine(engine: Engine) -> None:
    def work(seed: int) -> bool:
        x = batch_of(1 + seed % 6, seed)
        return all(np.array_equal(engine.run({"x": x})["y"], affine(x)) for _ in range(50))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(16)))


@pytest.mark.parametrize("contexts", [1, 2, 3])
def test_no_more_contexts_than_were_allowed_run_at_once(
    engine: Engine, gate: Gate, contexts: int
) -> None:
    x = batch_of(2)
    with ThreadPoolExecutor(6) as threads:
        runs = [threads.submit(engine.run, {"x": x}, contexts=contexts) for _ in range(12)]
        gate.wait_for(contexts)
        gate.opened.set()
        for run in runs:
            np.testing.assert_array_equal(run.result(10)["y"], affine(x))
    assert gate.most == len(gate.contexts) == contexts


def test_two_contexts_are_allowed_unless_told_otherwise(engine: Engine, gate: Gate) -> None:
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(engine.run, {"x": batch_of(1)}) for _ in range(8)]
        gate.wait_for(2)
        gate.opened.set()
        for run in runs:
            run.result(10)
    assert len(gate.contexts) == 2


def test_a_context_is_made_only_when_all_are_busy(engine: Engine, gate: Gate) -> None:
    gate.opened.set()
    for _ in range(5):
        engine.run({"x": batch_of(1)}, contexts=4)
    assert len(gate.contexts) == 1


@pytest.mark.parametrize("contexts", [0, -1, 1.0, "2", True, None])
def test_an_impossible_number_of_contexts_is_refused(engine: Engine, contexts: Any) -> None:
    with pytest.raises(ContextError, match="it must be an integer of at least 1"):
        engine.run({"x": batch_of(1)}, contexts=contexts)


def test_a_failed_run_gives_its_context_back_though_its_error_is_kept(engine: Engine) -> None:
    kept: list[BaseException] = []
    for _ in range(5):
        with pytest.raises(BindingError, match="missing: x") as caught:
            engine.run({}, contexts=1)
        kept.append(caught.value)
    np.testing.assert_array_equal(
        engine.run({"x": batch_of(1)}, contexts=1)["y"], affine(batch_of(1))
    )


def test_outputs_are_the_callers_own(engine: Engine) -> None:
    x, other = batch_of(2), batch_of(2, 1)
    first = engine.run({"x": x}, contexts=1)["y"]
    second = engine.run({"x": other}, contexts=1)["y"]
    np.testing.assert_array_equal(first, affine(x))
    first[:] = 0
    np.testing.assert_array_equal(second, affine(other))
    np.testing.assert_array_equal(engine.run({"x": other}, contexts=1)["y"], second)
    engine.close()
    np.testing.assert_array_equal(second, affine(other))


def test_closing_ends_waiting_callers_and_lets_running_ones_finish(
    engine: Engine, gate: Gate
) -> None:
    x = batch_of(1)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(engine.run, {"x": x}, contexts=1)
        gate.wait_for(1)
        waiting = threads.submit(engine.run, {"x": x}, contexts=1)
        engine.close()
        with pytest.raises(ContextError, match="this engine is closed"):
            waiting.result(10)
        gate.opened.set()
        np.testing.assert_array_equal(running.result(10)["y"], affine(x))
    with pytest.raises(ContextError, match="closed"):
        engine.run({"x": x})
    (context,) = gate.contexts
    with pytest.raises(ContextError, match="this context is closed"):
        context.run({"x": x}, None)


def test_an_engine_that_nobody_has_is_gone_at_once_with_its_contexts() -> None:
    engine = affine_engine()
    engine.run({"x": batch_of(1)})
    gone = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_runs_its_parents_engine_though_all_contexts_were_busy(
    engine: Engine, gate: Gate
) -> None:
    x = batch_of(3)
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(engine.run, {"x": x}, contexts=1)
        gate.wait_for(1)
        child = os.fork()
        if child == 0:
            gate.opened.set()
            right = np.array_equal(engine.run({"x": x}, contexts=1)["y"], affine(x))
            os._exit(0 if right else 1)
        gate.opened.set()
        run.result(10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_interrupts_at_any_moment_lose_no_context(engine: Engine) -> None:
    x = batch_of(2)
    engine.run({"x": x}, contexts=1)  # a context is not made in so short a time
    interrupted = 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    end = time.monotonic() + 0.5
    while time.monotonic() < end or not interrupted:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
            for _ in range(1000):
                assert np.array_equal(engine.run({"x": x}, contexts=1)["y"], affine(x))
        except KeyboardInterrupt:
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    np.testing.assert_array_equal(engine.run({"x": x}, contexts=1)["y"], affine(x))


# ---- a choice of outputs


@pytest.fixture(scope="module")
def branches() -> Generator[Engine]:
    """An engine with three outputs."""
    model = inception_model()
    names = [node.output[0] for node in model.graph.node[:2]]
    network = network_from_onnx(model, outputs=[*names, model.graph.output[0].name])
    with build(network, tune="none") as engine:
        yield engine


def _inputs(engine: Engine) -> dict[str, Any]:
    random = np.random.default_rng(3)
    shapes = {b.name: [int(str(dim)) for dim in b.shape] for b in engine.inputs}
    return {name: random.random(shape, np.float32) for name, shape in shapes.items()}


def test_outputs_are_chosen_by_name_and_come_in_that_order(branches: Engine) -> None:
    inputs = _inputs(branches)
    everything = branches.run(inputs)
    names = list(everything)
    assert len(names) == 3
    with branches.create_context() as context:
        for chosen in (names[::-1], [names[1]], [names[2], names[0]], []):
            for run in (context.run, branches.run):
                results = run(inputs, outputs=iter(chosen))
                assert list(results) == chosen
                for name, array in results.items():
                    np.testing.assert_array_equal(array, everything[name])


def test_an_unknown_output_is_refused_with_those_that_there_are(branches: Engine) -> None:
    names = ", ".join(binding.name for binding in branches.outputs)
    with pytest.raises(BindingError, match=f"outputs are {names}; unknown: nothing, x"):
        branches.run(_inputs(branches), outputs=[branches.outputs[0].name, "nothing", "x"])
    with pytest.raises(BindingError, match=r"unknown: ''$"):
        branches.run(_inputs(branches), outputs=[""])
    wrong: Any
    for wrong, words in (
        (branches.outputs[0].name, f"outputs is '{branches.outputs[0].name}'; it must be a list"),
        (3, "outputs is 3; it must be a list"),
        ([1], "the name of an output is 1; it must be a string"),
        ([["y"]], r"is \['y'\]"),
    ):
        with pytest.raises(BindingError, match=words):
            branches.run(_inputs(branches), outputs=wrong)


def test_chosen_outputs_of_data_dependent_size_are_trimmed() -> None:
    x = np.array([[1, 0, 2, 3]], np.float32)
    with affine_engine(**_changes()) as engine:
        assert engine.run({"x": x}, outputs=["y"])["y"].shape == (2, 3)
        assert engine.run({"x": x}, outputs=[]) == {}


def _changes() -> dict[str, Any]:
    header = counting_header()
    return {name: getattr(header, name) for name in ("plans", "bindings", "weights")}


# ---- on a GPU


def test_an_engine_for_gpus_runs_in_contexts_of_its_own(stub: StubDriver) -> None:
    with affine_gpu_engine(stub) as engine:
        for rows in (2, 6, 3):
            x = batch_of(rows)
            np.testing.assert_array_equal(engine.run({"x": x})["y"], affine(x))
        assert "memory" in stub.live_kinds()
    assert "memory" not in stub.live_kinds()


@pytest.mark.parametrize("direct_bytes", [0, 1 << 16])
def test_an_output_that_nobody_asks_for_stays_on_the_gpu(
    stub: StubDriver, monkeypatch: pytest.MonkeyPatch, direct_bytes: int
) -> None:
    monkeypatch.setattr("smelt.runtime._cuda_staging.DIRECT_OUTPUT_BYTES", direct_bytes)
    x = batch_of(3)
    with affine_gpu_engine(stub) as engine, engine.create_context() as context:
        memory = CudaMemory(cuda_device()).allocate(x.nbytes, "test")
        there = CudaArray(memory, DType.FLOAT32, x.shape)
        assert context.run({"x": there}, outputs=[]) == {}
        stub.calls.clear()
        assert context.run({"x": x}, outputs=[]) == {}
        assert stub.calls.count("cuMemcpyAsync") == 1  # the input
        np.testing.assert_array_equal(context.run({"x": x}, outputs=["y"])["y"], affine(x))
        with pytest.raises(BindingError, match="outputs are y; unknown: z"):
            context.run({"x": x}, outputs=["z"])
