"""Execution on a GPU, on a driver without one that does everything as late as it may."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import (
    CudaArray,
    CudaError,
    CudaMemory,
    CudaStream,
    cuda_device,
)
from smelt.errors import (
    BindingError,
    ContextError,
    DeviceError,
    EngineMismatchError,
    ShapeError,
)
from smelt.runtime import Event, Stream
from smelt.runtime._cuda_executor import CudaExecutor
from tests.support.cuda_driver_stub import CUresult
from tests.support.cuda_engines import (
    StubGpuArray,
    affine_gpu_engine,
    cuda_fingerprint,
    empty_there,
    engine_of,
    gpu_header,
    image_of,
    read_there,
)
from tests.support.engines import (
    ADD,
    COLUMNS,
    MAX_BATCH,
    MULTIPLY,
    affine,
    affine_data,
    affine_weights,
    batch_of,
    counting_header,
    host_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import EngineHeader
    from smelt.runtime import Engine, ExecutionContext
    from tests.support.cuda_driver_stub import StubDriver

Array = np.ndarray[Any, Any]


@pytest.fixture(params=["small outputs in place", "outputs copied"])
def engine(
    stub: StubDriver, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    if request.param == "outputs copied":
        monkeypatch.setattr("smelt.runtime._cuda_staging.DIRECT_OUTPUT_BYTES", 0)
    with affine_gpu_engine(stub) as found:
        yield found


# ---- by name


def test_numpy_comes_in_and_out(engine: Engine) -> None:
    with engine.create_context() as context:
        for rows in (1, MAX_BATCH, 3, 1):
            x = batch_of(rows, rows)
            assert np.array_equal(context.run({"x": x})["y"], affine(x))


def test_any_arrangement_on_the_host_is_read_right(engine: Engine) -> None:
    x = batch_of(4)
    with engine.create_context() as context:
        for given in (x[::-1], np.asfortranarray(x), x[::2], x[:, ::1]):
            assert np.array_equal(context.run({"x": given})["y"], affine(given))


def test_arrays_on_the_gpu_give_arrays_on_the_gpu(engine: Engine) -> None:
    x = batch_of(3)
    with engine.create_context() as context:
        y = context.run({"x": StubGpuArray(x).array})["y"]
        assert isinstance(y, CudaArray)
        y.synchronize()
        assert np.array_equal(read_there(y.allocation.address, y.shape), affine(x))


def test_results_of_one_run_are_not_touched_by_the_next(engine: Engine) -> None:
    first, second = batch_of(2, 1), batch_of(2, 2)
    with engine.create_context() as context:
        one = context.run({"x": first})["y"]
        context.run({"x": second})
        assert np.array_equal(one, affine(first))


# ---- by index


def test_execute_takes_addresses_and_arrays_of_both_sides(engine: Engine) -> None:
    x = batch_of(3)
    there, y, host = StubGpuArray(x), empty_there(3), np.zeros((3, COLUMNS), np.float32)
    with engine.create_context() as context:
        context.execute(3, [there.address, y.address])
        assert np.array_equal(y.content(), affine(x))
        context.execute(3, [there.array, host])
        assert np.array_equal(host, affine(x))
        host[:] = 0
        context.execute(3, [x, host])
        assert np.array_equal(host, affine(x))


def test_other_addresses_are_given_to_the_same_graph(engine: Engine, stub: StubDriver) -> None:
    with engine.create_context() as context:
        for seed in range(4):
            x = batch_of(2, seed)
            given, y = StubGpuArray(x), empty_there(2)
            context.execute(2, [given.address, y.address])
            assert np.array_equal(y.content(), affine(x))
        assert stub.calls.count("cuGraphInstantiate") == 1


def test_graphs_are_kept_for_the_batches_met_lately(engine: Engine, stub: StubDriver) -> None:
    with engine.create_context() as context:
        for rows in (1, 2, 1, 2, 3):
            context.run({"x": batch_of(rows)})
        assert stub.calls.count("cuGraphInstantiate") == 3


def test_an_address_that_kernels_cannot_read_at_once_is_copied(engine: Engine) -> None:
    x = batch_of(2)
    given = StubGpuArray(x, shift=4)
    y = StubGpuArray(np.zeros((2, COLUMNS), np.float32), shift=8)
    with engine.create_context() as context:
        context.execute(2, [given.address, y.address])
    assert np.array_equal(y.content(), affine(x))


@pytest.mark.parametrize("where", ["host", "nowhere", "the other GPU"])
def test_addresses_that_the_gpu_does_not_reach_are_refused(engine: Engine, where: str) -> None:
    x, y = batch_of(1), empty_there(1)
    other = CudaMemory(cuda_device(1)).allocate(x.nbytes, "test")
    address = {"host": int(x.ctypes.data), "nowhere": 4096, "the other GPU": other.address}[where]
    with (
        engine.create_context() as context,
        pytest.raises(BindingError, match=r"^x: 0x.* is (not memory that|memory of cuda:1)"),
    ):
        context.execute(1, [address, y.address])


# ---- steps of Python's


def _compiled(header: EngineHeader, weights: bytes, stub: StubDriver) -> Engine:
    affine_gpu_engine(stub).close()  # teaches the driver its kernels
    code, symbols = image_of((MULTIPLY, ADD))
    return engine_of(gpu_header(header, symbols), weights, code)


def test_steps_of_python_run_between_graphs(stub: StubDriver) -> None:
    a, b = affine_weights()
    profiler = _Profiler()
    with (
        _compiled(host_header(), affine_data(), stub) as engine,
        engine.create_context() as context,
        Stream("cuda") as stream,
    ):
        for rows in (6, 1, 4):
            x, y = batch_of(rows, rows), empty_there(rows)
            wanted = np.maximum(x * a, 0) + b
            np.testing.assert_array_equal(context.run({"x": x})["y"], wanted)
            context.enqueue(rows, [x, y.address], stream)
            stream.synchronize()
            np.testing.assert_array_equal(y.content(), wanted)
        context.profiler = profiler
        context.run({"x": batch_of(2)})
    assert profiler.layers == ["scale1 + relu1", "shift1"]
    assert profiler.total > 0.5


@pytest.mark.parametrize("where", ["host", "gpu"])
def test_sizes_that_a_run_decides_trim_the_outputs(stub: StubDriver, where: str) -> None:
    with (
        _compiled(counting_header(), b"", stub) as engine,
        engine.create_context() as context,
    ):
        for seed in range(5):
            x = (batch_of(5, seed)[:, :4] > 0.5).astype(np.float32)
            wanted = np.array(np.nonzero(x))
            if where == "host":
                np.testing.assert_array_equal(context.run({"x": x})["y"], wanted)
                continue
            y = context.run({"x": StubGpuArray(x).array})["y"]
            y.synchronize()
            memory: Any = (ctypes.c_int64 * wanted.size).from_address(y.allocation.address)
            np.testing.assert_array_equal(np.array(memory).reshape(y.shape), wanted)
        with pytest.raises(ShapeError, match=r"count is 24.*maximum 20"):
            context.run({"x": np.ones((6, 4), np.float32)})


# ---- streams


def test_enqueue_returns_before_the_work_is_done(engine: Engine) -> None:
    x, y = batch_of(2), empty_there(2)
    given = StubGpuArray(x)
    with engine.create_context() as context, Stream("cuda") as stream:
        context.enqueue(2, [given.address, y.address], stream)
        assert np.isnan(y.content()).all()
        stream.synchronize()
        assert np.array_equal(y.content(), affine(x))


class _ForeignStream:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@pytest.mark.parametrize("kind", ["ours", "native", "protocol", "handle", "default"])
def test_any_stream_will_do(engine: Engine, kind: str) -> None:
    x, y = batch_of(2), empty_there(2)
    given = StubGpuArray(x)
    with engine.create_context() as context, Stream("cuda") as stream:
        native: Any = stream.native
        handle = int(native.handle)
        chosen: Any = {
            "ours": stream,
            "native": native,
            "protocol": _ForeignStream(handle),
            "handle": handle,
            "default": 0,
        }[kind]
        context.enqueue(2, [given.address, y.address], chosen)
        (CudaStream(cuda_device(), 0) if kind == "default" else native).synchronize()
        assert np.array_equal(y.content(), affine(x))


def test_a_second_run_waits_for_the_first_on_whatever_stream(engine: Engine) -> None:
    first, second = batch_of(2, 1), batch_of(2, 2)
    a, b, y, z = StubGpuArray(first), StubGpuArray(second), empty_there(2), empty_there(2)
    with engine.create_context() as context, Stream("cuda") as one, Stream("cuda") as two:
        context.enqueue(2, [a.address, y.address], one)
        context.enqueue(2, [b.address, z.address], two)
        two.synchronize()
        assert np.array_equal(z.content(), affine(second))
        assert np.array_equal(y.content(), affine(first))
        context.enqueue(2, [b.address, y.address], one)
        assert np.array_equal(context.run({"x": first})["y"], affine(first))
        assert np.array_equal(y.content(), affine(second))


@pytest.mark.requirement("G-51")
def test_the_event_says_when_the_inputs_are_free_and_the_rest_goes_on(engine: Engine) -> None:
    x, y = batch_of(2), empty_there(2)
    given = StubGpuArray(x)
    consumed = Event("cuda")
    with engine.create_context() as context, Stream("cuda") as stream:
        for seed in range(2):
            x = batch_of(2, seed)
            given.fill(x)
            context.enqueue(2, [given.address, y.address], stream, consumed)
            assert not consumed.query()
            consumed.synchronize()
            given.fill(np.zeros_like(x))
            assert not np.array_equal(y.content(), affine(x))
            stream.synchronize()
            assert np.array_equal(y.content(), affine(x))


def test_arrays_live_until_an_enqueued_run_is_complete(engine: Engine) -> None:
    x, y = batch_of(2), empty_there(2)
    with engine.create_context() as context, Stream("cuda") as stream:
        context.enqueue(2, [StubGpuArray(x).array, y.array], stream)
        gc.collect()
        stream.synchronize()
        assert np.array_equal(y.content(), affine(x))


def test_arrays_of_the_host_may_change_after_enqueue(engine: Engine) -> None:
    y, z = empty_there(2), empty_there(2)
    x = batch_of(2, 1)
    with engine.create_context() as context, Stream("cuda") as stream:
        context.enqueue(2, [x, y.address], stream)
        x[:] = batch_of(2, 2)
        context.enqueue(2, [x, z.address], stream)
        x[:] = 0
        stream.synchronize()
        assert np.array_equal(y.content(), affine(batch_of(2, 1)))
        assert np.array_equal(z.content(), affine(batch_of(2, 2)))
        host = np.zeros((2, COLUMNS), np.float32)
        context.enqueue(2, [batch_of(2, 3), host], stream)
        stream.synchronize()
        assert np.array_equal(host, affine(batch_of(2, 3)))


@pytest.mark.parametrize("wrong", [None, "stream", True, object()])
def test_what_is_no_stream_or_event_is_refused(engine: Engine, wrong: Any) -> None:
    x, y = batch_of(1), empty_there(1)
    with engine.create_context() as context, Stream("cuda") as stream:
        with pytest.raises(ContextError, match="requires a stream"):
            context.enqueue(1, [x, y.address], wrong)
        with pytest.raises(ContextError, match=r"must be a smelt\.Event of a GPU"):
            context.enqueue(1, [x, y.address], stream, stream)


def test_closing_a_stream_finishes_what_was_queued(engine: Engine) -> None:
    x, y = batch_of(2), empty_there(2)
    given = StubGpuArray(x)
    with engine.create_context() as context:
        with Stream("cuda") as stream:
            context.enqueue(2, [given.address, y.address], stream)
            assert not np.array_equal(y.content(), affine(x))
        assert np.array_equal(y.content(), affine(x))


# ---- several GPUs


def _gpu_of(context: ExecutionContext) -> int:
    executor: object = vars(context)["_executor"]
    assert isinstance(executor, CudaExecutor)
    return executor.device.index


@pytest.mark.requirement("G-65", "G-66")
def test_an_engine_is_bound_to_the_gpu_that_is_named_or_selected(stub: StubDriver) -> None:
    for device, wanted in (("cuda:1", 1), ("cuda:0", 0), ("cuda", 0), (None, 0)):
        with affine_gpu_engine(stub, device=device) as engine, engine.create_context() as context:
            assert _gpu_of(context) == wanted
            x = batch_of(2)
            assert np.array_equal(context.run({"x": x})["y"], affine(x))
    previous = cuda_device(1).select()
    with affine_gpu_engine(stub) as engine, engine.create_context() as context:
        assert _gpu_of(context) == 1
    cuda_device(1).restore(0 if previous is None else previous)


@pytest.mark.requirement("G-67")
def test_a_thread_that_selected_another_gpu_is_told(engine: Engine, stub: StubDriver) -> None:
    x, y = StubGpuArray(batch_of(1)), empty_there(1)
    with engine.create_context() as context, Stream("cuda:1") as other:
        stub.current = 1
        with pytest.raises(ContextError, match=r"bound to cuda:0, .*this thread is cuda:1"):
            context.execute(1, [x.address, y.address])
        with pytest.raises(ContextError, match=r"bound to cuda:0, .*this thread is cuda:1"):
            context.enqueue(1, [x.address, y.address], 0)
        assert context.run({"x": batch_of(1)})["y"].shape == (1, COLUMNS)
        assert stub.current == 1  # as the thread left it
        stub.current = None
        with pytest.raises(ContextError, match="the stream is on cuda:1"):
            context.enqueue(1, [x.address, y.address], other)
        with pytest.raises(ContextError, match="input_consumed is on cuda:1"):
            context.enqueue(1, [x.address, y.address], 0, Event("cuda:1"))


def test_an_engine_for_another_gpu_is_refused(stub: StubDriver) -> None:
    stub.architecture = "sm_80"
    engine_for = affine_gpu_engine
    with pytest.raises(EngineMismatchError, match=r"another|sm_80|architecture"):
        engine_for(stub)
    stub.architecture = "sm_90"
    with pytest.raises(EngineMismatchError, match="'cuda', not 'cpu'"):
        engine_for(stub, device="cpu")
    with pytest.raises(DeviceError, match="cuda:7"):
        engine_for(stub, device="cuda:7")


def test_an_engine_that_was_tuned_under_another_driver_says_so_and_runs(
    stub: StubDriver, caplog: pytest.LogCaptureFixture
) -> None:
    here = cuda_device(0).timing_key
    for tuned_on in ("", here, "NVIDIA H200, driver for CUDA 12.4"):
        caplog.clear()
        made_for = replace(cuda_fingerprint(), tuned_on=tuned_on)
        with caplog.at_level("INFO"), affine_gpu_engine(stub, fingerprint=made_for) as engine:
            assert engine.create_context().run({"x": batch_of(1)})["y"].shape == (1, COLUMNS)
        assert ("was tuned on" in caplog.text) == (tuned_on not in ("", here))
    assert f"{tuned_on} and runs on {here}" in caplog.text


# ---- profiling


class _Profiler:
    def __init__(self) -> None:
        self.layers: list[str] = []
        self.total = 0.0

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Take note."""
        self.layers.append(name)
        self.total += milliseconds


def test_every_layer_is_reported_once_also_when_asynchronous(engine: Engine) -> None:
    x, y = StubGpuArray(batch_of(1)), empty_there(1)
    profiler = _Profiler()
    with engine.create_context() as context, Stream("cuda") as stream:
        context.profiler = profiler
        context.run({"x": batch_of(1)})
        context.execute(1, [x.address, y.address])
        assert profiler.layers == ["scale1 + relu1", "shift1"] * 2
        context.enqueue(1, [x.address, y.address], stream)
        context.enqueue(1, [x.address, y.address], stream)
        stream.synchronize()
        assert profiler.layers == ["scale1 + relu1", "shift1"] * 4
        assert profiler.total == pytest.approx(8 * 0.25)
        context.profiler = None
        assert np.array_equal(context.run({"x": batch_of(1)})["y"], affine(batch_of(1)))


def test_a_profiler_that_fails_is_heard_and_leaves_the_context_usable(engine: Engine) -> None:
    class Broken:
        def report_layer_time(self, name: str, milliseconds: float) -> None:
            raise KeyError(name, milliseconds)

    x, y = StubGpuArray(batch_of(1)), empty_there(1)
    with engine.create_context() as context, Stream("cuda") as stream:
        context.profiler = Broken()
        context.enqueue(1, [x.address, y.address], stream)
        with pytest.raises(KeyError):
            stream.synchronize()
        with pytest.raises(KeyError):
            context.run({"x": batch_of(1)})
        context.profiler = None
        assert np.array_equal(context.run({"x": batch_of(1)})["y"], affine(batch_of(1)))


def test_runs_are_ranges_in_a_system_profiler_where_its_package_is(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ranges = SimpleNamespace(push_range=said.append, pop_range=lambda: said.append("end"))
    monkeypatch.setitem(sys.modules, "nvtx", ranges)
    with engine.create_context() as context:
        context.run({"x": batch_of(1)})
    assert said == ["affine", "end"]
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with engine.create_context() as context:
        context.run({"x": batch_of(1)})
    assert said == ["affine", "end"]


# ---- refit, failures, the end


def test_refitted_weights_are_used_from_the_next_run_on(engine: Engine) -> None:
    x = batch_of(2)
    a, b = affine_weights()
    with engine.create_context() as context:
        assert np.array_equal(context.run({"x": x})["y"], affine(x))
        engine.refit({"a": a * 2})
        assert np.array_equal(context.run({"x": x})["y"], x * (a * 2) + b)


@pytest.mark.slow
def test_a_context_that_finds_no_memory_leaves_none_behind(
    engine: Engine, stub: StubDriver
) -> None:
    before = stub.live_kinds()
    for function in ("cuMemAlloc", "cuStreamCreate", "cuEventCreate", "cuMemsetD8Async"):
        stub.failures[function] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            engine.create_context()
        gc.collect()
        assert stub.live_kinds() == before


@pytest.mark.parametrize(
    "function", ["cuMemAlloc", "cuMemHostAlloc", "cuGraphInstantiate", "cuGraphLaunch"]
)
def test_a_run_that_fails_leaves_the_context_usable(
    engine: Engine, stub: StubDriver, function: str
) -> None:
    x = batch_of(2)
    given = StubGpuArray(x).array if function == "cuMemAlloc" else x  # results there are new memory
    with engine.create_context() as context:
        stub.failures[function] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            context.run({"x": given})
        assert np.array_equal(context.run({"x": x})["y"], affine(x))


@pytest.mark.parametrize("where", ["host", "between words"])
def test_what_a_failed_run_has_queued_is_waited_for_by_the_next(
    engine: Engine, stub: StubDriver, where: str
) -> None:
    first, second, y = batch_of(2, 1), batch_of(2, 2), empty_there(2)
    shifted = [StubGpuArray(x, shift=4) for x in (first, second)]
    given = [x.address for x in shifted] if where == "between words" else [first, second]
    with engine.create_context() as context, Stream("cuda") as one, Stream("cuda") as two:
        stub.failures["cuGraphLaunch"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            context.enqueue(2, [given[0], y.address], one)
        stub.calls.clear()
        context.enqueue(2, [given[1], y.address], two)
        assert "cuStreamWaitEvent" in stub.calls, "the first input may be on its way"
        two.synchronize()
        assert np.array_equal(y.content(), affine(second))


def test_threads_default_streams_are_taken_for_different_ones(
    engine: Engine, stub: StubDriver
) -> None:
    x, y = StubGpuArray(batch_of(2)), empty_there(2)
    with engine.create_context() as context:
        for handle, waits in ((1, 0), (1, 0), (2, 1), (2, 2)):
            context.enqueue(2, [x.address, y.address], handle)
            assert stub.calls.count("cuStreamWaitEvent") == waits


def test_a_gpu_that_is_lost_is_named_and_everything_still_closes(
    engine: Engine, stub: StubDriver
) -> None:
    context = engine.create_context()
    stub.failures["cuStreamSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CudaError, match=r"ILLEGAL_ADDRESS .* outside of its memory"):
        context.run({"x": batch_of(1)})
    for function in ("cuMemFree", "cuGraphExecDestroy", "cuStreamDestroy", "cuEventSynchronize"):
        stub.failures[function] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    context.close()
    engine.close()
    stub.failures.clear()
    stub.live = {h: f for h, f in stub.live.items() if f[0] in {"context", "library"}}


def test_engine_context_and_results_close_in_any_order(stub: StubDriver) -> None:
    engine = affine_gpu_engine(stub)
    context = engine.create_context()
    engine.close()
    x = batch_of(2)
    y = context.run({"x": StubGpuArray(x).array})["y"]
    context.close()
    context.close()
    del engine, context
    gc.collect()
    y.synchronize()
    assert np.array_equal(read_there(y.allocation.address, y.shape), affine(x))


def test_closing_waits_for_what_was_enqueued(engine: Engine) -> None:
    x, y = batch_of(2), empty_there(2)
    given = StubGpuArray(x)
    with Stream("cuda") as stream:
        context = engine.create_context()
        context.enqueue(2, [given.address, y.address], stream)
        context.close()
        assert np.array_equal(y.content(), affine(x))
        with pytest.raises(ContextError, match="closed"):
            context.run({"x": x})


def test_a_busy_context_refuses_a_second_thread(engine: Engine, stub: StubDriver) -> None:
    started, go = threading.Event(), threading.Event()
    found: list[BaseException] = []

    def blocked(*_arguments: Any) -> None:
        started.set()
        go.wait(10)

    def run(context: ExecutionContext) -> None:
        context.run({"x": batch_of(1)})

    symbol = next(iter(stub.kernels))
    kernel, stub.kernels[symbol] = stub.kernels[symbol], blocked
    with engine.create_context() as context:
        thread = threading.Thread(target=run, args=(context,))
        thread.start()
        started.wait(10)
        try:
            context.run({"x": batch_of(1)})
        except ContextError as error:
            found.append(error)
        go.set()
        thread.join()
        stub.kernels[symbol] = kernel
    assert "busy in another thread" in str(found[0])
