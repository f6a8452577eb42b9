"""Engines, runtimes and contexts in the documented vocabulary."""

from __future__ import annotations

import gc
import io
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import gie
from smelt.engine import VERSION, Fingerprint, read_engine, serialize_engine, user_signer
from smelt.errors import BindingError, ContextError, EngineMismatchError
from smelt.interp import interpret
from tests.support.gie import (
    MNIST,
    AccumulatingProfiler,
    RecordingLogger,
    buffers_for,
    build,
    execute,
    found,
    layer_names,
    numbers,
    output_of,
    parse_mnist,
    small_network,
)

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.ir import Array


@pytest.fixture(scope="module")
def engine() -> gie.CudaEngine:
    """The small network for batches of at most 3."""
    return build(small_network(), max_batch_size=3)


def _wanted(network: gie.InferNetwork, x: Array) -> Array:
    return interpret(network.graph, {"data": x})["out"]


# ---- what an engine says of itself


@pytest.mark.requirement("GX-7", "G-48")
def test_bindings_are_numbered_and_what_is_absent_has_the_documented_stand_ins(
    engine: gie.CudaEngine,
) -> None:
    assert engine.nb_bindings == 2
    indices = [engine.get_binding_index(name) for name in ("data", "out")]
    assert sorted(indices) == [0, 1]
    assert [engine.get_binding_name(index) for index in indices] == ["data", "out"]
    assert [engine.binding_is_input(index) for index in indices] == [True, False]
    assert [engine.get_binding_dimensions(i) for i in indices] == [(4, 10, 9), (8, 10, 9)]
    assert engine.get_binding_index("nothing") == -1
    for index in (-1, 2, 99):
        assert engine.get_binding_name(index) is None
        assert engine.get_binding_dimensions(index) == (0, 0, 0)
        assert not engine.binding_is_input(index)


@pytest.mark.requirement("GX-7")
def test_engine_shows_its_batch_layers_workspace_and_its_contexts_their_engine() -> None:
    engine = build(small_network(), max_batch_size=3, max_workspace_size=1 << 16)
    assert engine.max_batch_size == 3
    assert engine.nb_layers == len(layer_names(engine))
    assert 0 <= engine.workspace_size <= 1 << 16
    context = engine.create_execution_context()
    assert context.engine is engine
    assert context.profiler is None
    profiler = AccumulatingProfiler()
    context.set_profiler(profiler)
    assert context.profiler is profiler
    assert not context.debug_sync


@pytest.mark.requirement("G-44")
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, io.BytesIO])
def test_runtime_reads_engines_from_bytes_and_streams(engine: gie.CudaEngine, form: Any) -> None:
    stream = io.BytesIO()
    data = engine.serialize(stream)
    assert stream.getvalue() == data
    runtime = gie.create_infer_runtime(RecordingLogger())
    x = numbers(2, 4, 10, 9)
    again = runtime.deserialize_cuda_engine(form(data))
    assert np.array_equal(execute(again, {"data": x})["out"], execute(engine, {"data": x})["out"])


@pytest.mark.requirement("G-43")
def test_engine_is_used_directly_or_from_a_file(engine: gie.CudaEngine, tmp_path: Path) -> None:
    path = tmp_path / "small.engine"
    with path.open("wb") as file:
        engine.serialize(file)
    x = numbers(3, 4, 10, 9)
    read = gie.create_infer_runtime(RecordingLogger()).deserialize_cuda_engine(path)
    direct = execute(engine, {"data": x})["out"]
    assert np.array_equal(direct, execute(read, {"data": x})["out"])
    assert np.allclose(direct, _wanted(small_network(), x), atol=1e-5)


@pytest.mark.requirement("G-45", "G-75")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, f"built for 0.0.1, but this machine has {VERSION}"),
        ({"features": ("a-feature-of-2040",)}, "lacks a-feature-of-2040"),
        ({"system": "plan9"}, "operating system"),
        ({"architecture": "m68k"}, "processor architecture"),
    ],
)
def test_engine_of_another_version_or_platform_is_refused(
    engine: gie.CudaEngine, change: dict[str, Any], words: str
) -> None:
    """Signed by this user, so only the fingerprint stands against it."""
    file = read_engine(engine.serialize())
    made: Fingerprint = file.header.fingerprint
    assert made.version == smelt.__version__
    header = replace(file.header, fingerprint=replace(made, **change))
    data = serialize_engine(header, file.weights, file.code, file.runtime_code, user_signer())
    logger = RecordingLogger()
    runtime = gie.create_infer_runtime(logger)
    with pytest.raises(EngineMismatchError, match=words):
        runtime.deserialize_cuda_engine(data)
    assert any(words in text for text in logger.texts(gie.Severity.ERROR))
    runtime.deserialize_cuda_engine(engine.serialize())


# ---- executing


@pytest.mark.requirement("G-38", "G-53")
def test_smaller_batches_run_and_larger_ones_are_refused_in_either_call(
    engine: gie.CudaEngine,
) -> None:
    x = numbers(4, 4, 10, 9)
    wanted = _wanted(small_network(), x)
    context = engine.create_execution_context()
    for batch in (3, 1, 2):
        assert np.allclose(execute(engine, {"data": x[:batch]})["out"], wanted[:batch], atol=1e-5)
    buffers = buffers_for(engine, 4, {"data": x})
    with pytest.raises(ContextError, match="at most 3"):
        context.execute(4, buffers)
    with smelt.Stream() as stream, pytest.raises(ContextError, match="at most 3"):
        context.enqueue(4, buffers, stream)


@pytest.mark.requirement("G-47", "G-50", "G-52")
def test_buffers_are_arrays_or_addresses_in_the_order_of_the_bindings(
    engine: gie.CudaEngine,
) -> None:
    x = numbers(2, 4, 10, 9)
    wanted = execute(engine, {"data": x})["out"]
    context = engine.create_execution_context()
    buffers = buffers_for(engine, 2, {"data": x})
    result = buffers[engine.get_binding_index("out")]
    assert context.execute(2, [buffer.ctypes.data for buffer in buffers])
    assert np.array_equal(result, wanted)
    result[:] = 0
    with smelt.Stream() as stream:
        assert context.enqueue(2, buffers, stream, None)
        stream.synchronize()
    assert np.array_equal(result, wanted)
    assert engine.execute(context, buffers_for(engine, 3, {"data": numbers(3, 4, 10, 9)}))
    with pytest.raises(ContextError, match="another engine"):
        build(small_network()).execute(context, buffers)


@pytest.mark.requirement("G-51", "G-54")
def test_event_is_signalled_when_the_inputs_may_be_refilled(engine: gie.CudaEngine) -> None:
    x = numbers(3, 4, 10, 9)
    wanted = execute(engine, {"data": x})["out"]
    context, consumed, gate = engine.create_execution_context(), smelt.Event(), threading.Event()
    buffers = buffers_for(engine, 3, {"data": x})
    with smelt.Stream() as stream:
        stream.submit(lambda: gate.wait(10) and None)
        context.enqueue(3, buffers, stream, consumed)
        assert not consumed.query()
        gate.set()
        consumed.synchronize()
        buffers[engine.get_binding_index("data")][:] = -99
        stream.synchronize()
    assert np.array_equal(buffers[engine.get_binding_index("out")], wanted)


@pytest.mark.requirement("G-49", "G-31")
def test_bindings_are_contiguous_float32_even_where_the_network_is_in_halves() -> None:
    network = small_network(kind=gie.DataType.HALF)
    x = numbers(2, 4, 10, 9)
    tensor = network.get_input(0)
    assert tensor is not None
    assert tensor.dtype == "float16"
    engine = build(network, max_batch_size=2, half2_mode=True)
    assert [binding.dtype.value for binding in engine.engine.bindings] == ["float32"] * 2
    assert [engine.get_binding_name(index) for index in range(2)] == ["data", "out"]
    result = execute(engine, {"data": x})["out"]
    assert result.dtype == np.float32
    wanted = _wanted(small_network(), x)
    assert np.abs(result - wanted).max() < 1e-2 * np.abs(wanted).max()
    assert tensor.shape == (4, 10, 9)
    assert tensor.dtype == "float16"  # the network itself is as it was
    context = engine.create_execution_context()
    with pytest.raises(BindingError, match="float16"):
        context.execute(1, [x[:1].astype(np.float16), result[:1]])
    with pytest.raises(BindingError, match="contiguous, aligned and writable"):
        context.execute(2, [x, np.asfortranarray(result)])


@pytest.mark.requirement("G-46")
def test_contexts_of_one_engine_run_at_once_and_share_its_weights(engine: gie.CudaEngine) -> None:
    inputs = [numbers(1 + seed % 3, 4, 10, 9, seed=seed) for seed in range(6)]
    alone = [execute(engine, {"data": x})["out"] for x in inputs]
    contexts = [engine.create_execution_context() for _ in inputs]
    start, failures = threading.Barrier(len(inputs)), list[int]()

    def work(number: int) -> None:
        x = inputs[number]
        buffers = buffers_for(engine, len(x), {"data": x})
        start.wait()
        for _ in range(40):
            contexts[number].execute(len(x), buffers)
            if not np.array_equal(buffers[engine.get_binding_index("out")], alone[number]):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Taken:
    """Adds up what is allocated."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def allocated(self, address: int, size_bytes: int, tag: str) -> None:
        del address, tag
        self.size_bytes += size_bytes

    def released(self, address: int, size_bytes: int, tag: str) -> None:
        del address, tag, size_bytes


@pytest.mark.requirement("G-46")
def test_another_context_costs_no_further_copy_of_the_weights() -> None:
    network = gie.InferNetwork()
    x = network.add_input("data", gie.DataType.FLOAT, (256, 2, 2))
    layer = network.add_fully_connected(x, 1024, numbers(1024, 1024))
    network.mark_output(output_of(layer))
    engine = build(network)
    taken = Taken()
    contexts = [engine.engine.create_context(tracker=taken) for _ in range(3)]
    assert len(engine.serialize()) > 4 << 20
    assert 0 < taken.size_bytes < 1 << 20
    for context in contexts:
        context.close()


def test_contexts_outlive_the_engine_that_is_destroyed(engine: gie.CudaEngine) -> None:
    built = build(small_network())
    context, x = built.create_execution_context(), numbers(1, 4, 10, 9)
    built.destroy()
    built.destroy()
    buffers = buffers_for(engine, 1, {"data": x})
    assert context.execute(1, buffers)
    assert np.allclose(buffers[1], execute(engine, {"data": x})["out"], atol=1e-5)
    with pytest.raises(ContextError, match="closed"):
        built.create_execution_context()


# ---- profiling


@pytest.mark.requirement("G-57", "G-59")
def test_profiler_hears_of_every_layer_of_the_optimised_engine_by_its_fused_name(
    engine: gie.CudaEngine,
) -> None:
    profiler = AccumulatingProfiler()
    context = engine.create_execution_context()
    context.profiler = profiler
    buffers = buffers_for(engine, 3, {"data": numbers(3, 4, 10, 9)})
    for _ in range(5):
        context.execute(3, buffers)
    assert profiler.calls == layer_names(engine) * 5
    assert "conv + relu" in profiler.milliseconds
    assert {"conv", "relu"}.isdisjoint(profiler.milliseconds)
    assert all(0 <= mean < 1000 for mean in profiler.means(5).values())


@pytest.mark.requirement("G-55", "G-56")
def test_profiler_hears_of_asynchronous_runs_too(engine: gie.CudaEngine) -> None:
    profiler = AccumulatingProfiler()
    context = engine.create_execution_context()
    context.profiler = profiler
    buffers = buffers_for(engine, 1, {"data": numbers(1, 4, 10, 9)})
    with smelt.Stream() as stream:
        for _ in range(3):
            context.enqueue(1, buffers, stream)
        stream.synchronize()
    assert profiler.calls == layer_names(engine) * 3
    context.profiler = None
    context.execute(1, buffers)
    assert len(profiler.calls) == 3 * engine.nb_layers


@pytest.mark.requirement("GX-7")
def test_debug_sync_lets_the_logger_hear_of_each_layer_that_ran() -> None:
    logger = RecordingLogger()
    engine = build(small_network(), logger)
    context = engine.create_execution_context()
    buffers, profiler = buffers_for(engine, 1, {}), AccumulatingProfiler()
    context.profiler = profiler
    logger.messages.clear()
    context.execute(1, buffers)
    assert not logger.messages
    context.set_debug_sync(True)
    context.execute(1, buffers)
    heard = logger.texts(gie.Severity.INFO)
    assert [text.split(": done in ")[0] for text in heard] == layer_names(engine)
    assert context.profiler is profiler
    assert profiler.calls == layer_names(engine) * 2


# ---- lives


@pytest.mark.requirement("G-41", "GX-8")
def test_parser_and_its_files_may_be_gone_before_the_build(tmp_path: Path) -> None:
    for name in ("mnist.prototxt", "mnist.caffemodel"):
        (tmp_path / name).write_bytes((MNIST / name).read_bytes())
    network = gie.InferNetwork()
    parser = gie.create_caffe_parser()
    blobs = parser.parse(tmp_path / "mnist.prototxt", tmp_path / "mnist.caffemodel", network)
    network.mark_output(found(blobs, "prob"))
    gone = weakref.ref(parser)
    parser.destroy()
    del parser
    gc.collect()
    assert gone() is None
    for name in ("mnist.prototxt", "mnist.caffemodel"):
        (tmp_path / name).write_bytes(b"")
    x = numbers(1, 1, 28, 28)
    kept = gie.InferNetwork()
    kept.mark_output(found(parse_mnist(kept), "prob"))
    results = [execute(build(made), {"data": x})["prob"] for made in (network, kept)]
    # Each build may time and choose other kernels.
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-5)


@pytest.mark.requirement("G-41", "G-23")
def test_weights_are_read_during_the_build_and_never_after_it() -> None:
    weights = numbers(8, 4, 3, 3)
    network = gie.InferNetwork()
    x = network.add_input("data", gie.DataType.FLOAT, (4, 10, 9))
    layer = network.add_convolution(x, 8, (3, 3), weights)
    output_of(layer).name = "out"
    network.mark_output(output_of(layer))
    data = numbers(1, 4, 10, 9)
    weights[:] = numbers(8, 4, 3, 3, seed=1)  # by reference: the build sees these
    wanted = _wanted(network, data)
    engine = build(network)
    weights[:] = 0
    assert np.allclose(execute(engine, {"data": data})["out"], wanted, atol=1e-4)


@pytest.mark.requirement("G-72", "G-38")
def test_an_engine_is_built_and_kept_for_each_batch_size() -> None:
    network = small_network()
    x = numbers(8, 4, 10, 9)
    engines: dict[int, bytes] = {}
    for batch in (1, 4, 8):
        engines[batch] = build(network, max_batch_size=batch).serialize()
    runtime = gie.create_infer_runtime(RecordingLogger())
    wanted = _wanted(network, x)
    for batch, data in engines.items():
        engine = runtime.deserialize_cuda_engine(data)
        assert engine.max_batch_size == batch
        assert np.allclose(execute(engine, {"data": x[:batch]})["out"], wanted[:batch], atol=1e-5)


@pytest.mark.requirement("G-71")
def test_own_layer_runs_between_two_engines_on_one_stream() -> None:
    """Engine A, the application's function, engine B: equal to the whole on the references."""

    def own_layer(source: Array, target: Array) -> None:
        np.copyto(target, source * np.abs(source) + 1)

    first = small_network()
    second = gie.InferNetwork("second")
    y = second.add_input("features", gie.DataType.FLOAT, (8, 10, 9))
    pool = second.add_pooling(y, gie.PoolingType.AVERAGE, (10, 9))
    output_of(pool).name = "means"
    second.mark_output(output_of(pool))
    engine_a, engine_b = build(first, max_batch_size=2), build(second, max_batch_size=2)
    context_a, context_b = (e.create_execution_context() for e in (engine_a, engine_b))
    x = numbers(2, 4, 10, 9)
    buffers_a, buffers_b = buffers_for(engine_a, 2, {"data": x}), buffers_for(engine_b, 2, {})
    out_of_a = buffers_a[engine_a.get_binding_index("out")]
    into_b = buffers_b[engine_b.get_binding_index("features")]
    gate = threading.Event()
    with smelt.Stream() as stream:
        stream.submit(lambda: gate.wait(10) and None)
        context_a.enqueue(2, buffers_a, stream)
        stream.submit(lambda: own_layer(out_of_a, into_b))
        context_b.enqueue(2, buffers_b, stream)
        assert not into_b.any()
        gate.set()
        stream.synchronize()
    features = _wanted(first, x)
    wanted = (features * np.abs(features) + 1).mean((2, 3), keepdims=True)
    means = buffers_b[engine_b.get_binding_index("means")]
    assert np.allclose(means, wanted, rtol=1e-4, atol=1e-4)
