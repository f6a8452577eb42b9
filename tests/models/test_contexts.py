"""Built engines in many contexts and threads, over batches, shapes, plans and limits."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.engine import Space
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.ops import Conv, MatMul, Relu, Softmax
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.real_models import relative_error
from tests.support.small_networks import SHAPE, answers, pictures, small_network, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt import Engine, ExecutionContext

MAX_BATCH = 4


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with smelt.build(small_network(), tune="none", max_batch_size=MAX_BATCH) as built:
        yield built


def _run(context: ExecutionContext, images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    (made,) = context.run({"data": images}).values()
    return np.asarray(made)


@pytest.mark.slow
@pytest.mark.requirement("G-46")
def test_ten_thousand_runs_in_eight_contexts_are_bit_equal_and_leave_memory_flat(
    engine: Engine,
) -> None:
    batches = [pictures(1 + seed % MAX_BATCH, seed) for seed in range(8)]
    with engine.create_context(threads=1) as context:
        wanted = [_run(context, batch) for batch in batches]
    _drive(engine, batches, wanted, 50)
    before = _resident_bytes()
    _drive(engine, batches, wanted, 1250)
    assert _resident_bytes() - before < 16 << 20


def _drive(engine: Engine, batches: list[Any], wanted: list[Any], runs: int) -> None:
    failures: list[str] = []

    def drive(seed: int) -> None:
        with engine.create_context(threads=1 + seed % 3) as context:
            for number in range(runs):
                which = (seed + number) % 8
                if not np.array_equal(_run(context, batches[which]), wanted[which]):
                    failures.append(f"context {seed}, run {number}")

    threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.slow
def test_contexts_come_and_go_without_a_trace(engine: Engine) -> None:
    image = pictures(1)

    def cycle(times: int) -> None:
        for _ in range(times):
            with engine.create_context(threads=2) as context:
                _run(context, image)

    cycle(20)
    gc.collect()
    before = _resident_bytes()
    cycle(300)
    gc.collect()
    assert _resident_bytes() - before < 8 << 20


def test_a_context_outlives_its_engines_name() -> None:
    network = small_network()
    context = smelt.build(network, tune="none").create_context()
    gc.collect()
    image = pictures(1)
    assert relative_error(_run(context, image), answers(network, image)) <= 1e-4
    context.close()
    context.close()


@pytest.mark.requirement("G-38", "G-53")
def test_smaller_batches_run_each_row_as_alone_and_larger_ones_are_refused(engine: Engine) -> None:
    images = pictures(MAX_BATCH)
    with engine.create_context() as context:
        alone = np.concatenate([_run(context, images[i : i + 1]) for i in range(MAX_BATCH)])
        for batch in range(1, MAX_BATCH + 1):
            assert relative_error(_run(context, images[:batch]), alone[:batch]) <= 1e-6
        many = pictures(MAX_BATCH + 1)
        for call in _calls(context, many):
            with pytest.raises(smelt.ContextError, match="max_batch_size=5"):
                call()
        assert relative_error(_run(context, images), alone) <= 1e-6


def _calls(context: ExecutionContext, images: np.ndarray[Any, Any]) -> list[Callable[[], Any]]:
    bindings = [images, np.zeros((len(images), 10), np.float32)]
    stream = smelt.Stream("cpu")
    return [
        lambda: context.run({"data": images}),
        lambda: context.execute(len(images), bindings),
        lambda: context.enqueue(len(images), bindings, stream),
    ]


@pytest.mark.requirement("G-49", "G-54")
def test_the_documented_flow_copies_in_enqueues_and_copies_out_on_one_stream(
    engine: Engine,
) -> None:
    images = pictures(2)
    bindings: list[Any] = [None, None]
    bindings[engine.binding_index("data")] = images
    (output,) = engine.outputs
    result = np.full((2, 10), np.nan, np.float32)
    bindings[engine.binding_index(output.name)] = result
    for binding in engine.bindings:
        assert binding.dtype is DType.FLOAT32
    stream, consumed = smelt.Stream("cpu"), smelt.Event("cpu")
    with engine.create_context() as context:
        context.enqueue(2, bindings, stream, input_consumed=consumed)
        consumed.synchronize()
        stream.synchronize()
        np.testing.assert_array_equal(result, _run(context, images).reshape(2, 10))


def _convolutions() -> Graph:
    """Any batch, height and width."""
    graph = Graph("anywhere")
    extents = [SymbolicDim.symbol(name) for name in ("n", "h", "w")]
    n, h, w = extents
    x = graph.add_input("x", TensorType(DType.FLOAT32, (n, 3, h, w)))
    kernel = graph.add_constant(weights(16, 3, 3, 3), "kernel")
    op = Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2), dilations=(1, 1))
    y = graph.add(Relu(), graph.add(op, x, kernel, name="conv").output, name="relu").output
    kernel = graph.add_constant(weights(5, 16, 1, 1), "kernel2")
    op = Conv(kernel_shape=(1, 1), pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1))
    y = graph.add(op, y, kernel, name="conv2").output
    graph.outputs.append(graph.add(Softmax(axis=1), y, name="softmax").output)
    return graph


def test_every_extent_of_a_range_runs_and_those_beside_it_are_refused() -> None:
    graph = _convolutions()
    spec = ((1, 3, 5, 6), (2, 3, 16, 16), (3, 3, 33, 20))
    engine = smelt.build(graph, tune="none", shapes={"x": spec})
    rng = np.random.default_rng(0)
    with engine.create_context(threads=2) as context:
        for shape in ((1, 3, 5, 6), (3, 3, 33, 20), (2, 3, 7, 19), (1, 3, 32, 6), (3, 3, 6, 7)):
            x = rng.standard_normal(shape).astype(np.float32)
            (made,) = context.run({"x": x}).values()
            (wanted,) = interpret(graph, {"x": x}).values()
            assert made.shape == wanted.shape
            assert relative_error(made, wanted) <= 1e-4, shape
        for shape in ((4, 3, 5, 6), (1, 3, 4, 6), (1, 3, 34, 6)):
            with pytest.raises(smelt.SmeltError, match="plan"):
                context.run({"x": np.zeros(shape, np.float32)})


def test_two_plans_share_weights_and_are_chosen_by_shape() -> None:
    graph = _convolutions()
    shapes = [(1, 3, 8, 8), (2, 3, 12, 10)]
    engine = smelt.build(graph, tune="none", shapes={"x": shapes})
    assert len(engine.header.plans) == 2
    one = smelt.build(graph, tune="none", shapes={"x": shapes[0]})
    packed = [
        {b.start for b in plan.buffers if b.space is Space.WEIGHTS} for plan in engine.header.plans
    ]
    assert packed[0] & packed[1]
    assert len(engine.header.weights) < 2 * len(one.header.weights)
    with engine.create_context() as context:
        for shape in (*shapes, shapes[0]):
            x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            (made,) = context.run({"x": x}).values()
            (wanted,) = interpret(graph, {"x": x}).values()
            assert relative_error(made, wanted) <= 1e-4
        with pytest.raises(smelt.SmeltError, match="plan"):
            context.run({"x": np.zeros((1, 3, 9, 9), np.float32)})


@pytest.mark.requirement("G-39")
def test_the_workspace_limit_keeps_tactics_out_that_need_more() -> None:
    graph = Graph("product")
    a = graph.add_input("a", TensorType(DType.FLOAT32, (64, 200)))
    b = graph.add_input("b", TensorType(DType.FLOAT32, (200, 96)))
    graph.outputs.append(graph.add(MatMul(), a, b, name="product").output)
    rng = np.random.default_rng(0)
    given = {
        "a": rng.standard_normal((64, 200)).astype(np.float32),
        "b": rng.standard_normal((200, 96)).astype(np.float32),
    }
    kinds: list[str] = []
    for limit in (1 << 30, 0):
        engine = smelt.build(graph, tune="none", max_workspace_bytes=limit)
        kinds.append(engine.layers[-1].tactic)
        with engine.create_context() as context:
            (made,) = context.run(given).values()
        assert relative_error(made, given["a"] @ given["b"]) <= 1e-4
    assert kinds[0] != kinds[1]
    with pytest.raises(smelt.BuildError, match="max_workspace_bytes"):
        smelt.build(graph, max_workspace_bytes=-1)


@pytest.mark.requirement("G-25")
def test_tuning_times_candidates_on_this_machine_and_remembers_them(tmp_path: Any) -> None:
    cache = tmp_path / "timings.json"
    network = small_network()
    first = smelt.build(network, tune="fast", timing_cache=cache)
    measured = cache.read_text()
    assert "conv" in measured
    second = smelt.build(network, tune="fast", timing_cache=cache)
    assert cache.read_text() == measured
    assert [layer.tactic for layer in first.layers] == [layer.tactic for layer in second.layers]
    image = pictures(1)
    with second.create_context() as context:
        assert relative_error(_run(context, image), answers(network, image)) <= 1e-4


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_after_a_build_runs_and_builds(engine: Engine) -> None:
    images = pictures(2)
    with engine.create_context(threads=2) as context:
        wanted = _run(context, images)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                same = np.array_equal(_run(context, images), wanted)
                with smelt.build(small_network(), tune="none") as again:
                    _run(again.create_context(threads=2), images[:1])
                status = 0 if same else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        np.testing.assert_array_equal(_run(context, images), wanted)


@pytest.mark.requirement("G-43")
def test_an_engine_answers_alike_used_at_once_and_read_from_bytes_or_file(
    engine: Engine, tmp_path: Any
) -> None:
    images = pictures(3)
    with engine.create_context() as context:
        wanted = _run(context, images)
    data = engine.serialize()
    engine.save(tmp_path / "small.engine")
    with open(tmp_path / "stream.engine", "wb") as file:
        engine.save(file)
    sources = (data, tmp_path / "small.engine", tmp_path / "stream.engine")
    for source in sources:
        with smelt.load(source) as loaded, loaded.create_context() as context:
            np.testing.assert_array_equal(_run(context, images), wanted)
            assert loaded.max_batch_size == MAX_BATCH
            assert [b.name for b in loaded.bindings] == [b.name for b in engine.bindings]


def test_the_input_is_what_was_declared(engine: Engine) -> None:
    assert [(b.name, b.shape[1:]) for b in engine.inputs] == [("data", SHAPE)]
