"""What GIE's guide says of GPUs, as functions that fail where it is not so.

They run where there is a GPU, and in a process whose GPUs are interpreted (tests/support/host_gpu).
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import gie
from smelt.devices.cuda import CudaMemory, CudaStream, copy_memory, cuda_device, selected_device
from smelt.errors import BindingError, ContextError
from smelt.interp import interpret
from tests.support.gie import (
    AccumulatingProfiler,
    RecordingLogger,
    candidates_times,
    layer_names,
    numbers,
    output_of,
    report,
    small_network,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from smelt.devices.cuda import CudaDevice
    from smelt.ir import Array

MAX_BATCH = 5
_HALF_ERROR = 3e-3


def build(
    *,
    device: str = "cuda",
    half2: bool = False,
    kind: gie.DataType = gie.DataType.FLOAT,
    network: gie.InferNetwork | None = None,
) -> gie.CudaEngine:
    """The small network, or another, for a GPU."""
    builder = gie.create_infer_builder(RecordingLogger())
    builder.device = device
    builder.set_max_batch_size(MAX_BATCH)
    builder.set_half2_mode(half2)
    builder.set_min_find_iterations(1)
    builder.set_average_find_iterations(1)
    engine = builder.build_cuda_engine(network or small_network(kind=kind))
    builder.destroy()
    return engine


def _layers(count: int, channels: int, size: int) -> gie.InferNetwork:
    """Convolutions one behind the other, their weights in 16 bits."""
    network = gie.InferNetwork()
    last = network.add_input("data", gie.DataType.HALF, (channels, size, size))
    for number in range(count):
        weights = numbers(channels, channels, 3, 3, seed=number) / (3 * channels**0.5)
        layer = network.add_convolution(last, channels, (3, 3), weights.astype(np.float16))
        layer.set_padding((1, 1))
        last = output_of(network.add_activation(output_of(layer), gie.ActivationType.RELU))
    last.name = "out"
    network.mark_output(last)
    return network


def wanted(x: Array) -> Array:
    """What the references make of it."""
    return interpret(small_network().graph, {"data": x})["out"]


def error_of(mine: Array, right: Array) -> float:
    """The largest difference, of the largest magnitude."""
    return float(np.abs(mine - right).max() / np.abs(right).max())


class Buffers:
    """Memory of a GPU for every binding, in their order, float32 without gaps."""

    def __init__(
        self, engine: gie.CudaEngine, batch: int, device: CudaDevice | None = None
    ) -> None:
        """Allocate it."""
        self.device = device or selected_device()
        self.engine, self.batch = engine, batch
        self.shapes = [
            (batch, *engine.get_binding_dimensions(index)) for index in range(engine.nb_bindings)
        ]
        self.memory = [
            CudaMemory(self.device).allocate(4 * int(np.prod(shape)), "buffer")
            for shape in self.shapes
        ]
        self.addresses = [place.address for place in self.memory]
        self.stream = CudaStream(self.device)

    def write(self, name: str, array: Array) -> None:
        """Fill an input and wait."""
        place = self.memory[self.engine.get_binding_index(name)]
        assert place.size_bytes == array.nbytes
        source = int(array.ctypes.data)
        copy_memory(self.device, place.address, source, array.nbytes, self.stream)
        self.stream.synchronize()

    def read(self, name: str) -> Array:
        """Wait for what was queued on the buffers' own stream, and return an output."""
        index = self.engine.get_binding_index(name)
        found: Array = np.empty(self.shapes[index], np.float32)
        target = int(found.ctypes.data)
        copy_memory(self.device, target, self.addresses[index], found.nbytes, self.stream)
        self.stream.synchronize()
        return found


def execute(engine: gie.CudaEngine, x: Array, device: CudaDevice | None = None) -> Array:
    """One synchronous execution on buffers of the GPU."""
    buffers = Buffers(engine, len(x), device)
    buffers.write("data", x)
    context = engine.create_execution_context()
    assert context.execute(len(x), buffers.addresses) is True
    context.destroy()
    return buffers.read("out")


# ---- executing (guide, chapter 3)


def buffers_are_addresses_in_the_order_of_the_bindings() -> None:
    engine = build()
    assert [engine.get_binding_index(name) for name in ("data", "out", "none")] == [0, 1, -1]
    for batch in (1, MAX_BATCH, 2):
        x = numbers(batch, 4, 10, 9, seed=batch)
        assert error_of(execute(engine, x), wanted(x)) < 1e-4
    buffers = Buffers(engine, 1)
    context = engine.create_execution_context()
    with pytest.raises(BindingError):
        context.execute(1, buffers.addresses[:1])
    host = numbers(1, 4, 10, 9)
    with pytest.raises(BindingError, match="is not memory that a GPU can access"):
        context.execute(1, [int(host.ctypes.data), buffers.addresses[1]])


def bindings_are_float32_in_nchw_without_gaps() -> None:
    for half2 in (False, True):
        engine = build(half2=half2, kind=gie.DataType.HALF if half2 else gie.DataType.FLOAT)
        assert [b.dtype.value for b in engine.engine.bindings] == ["float32"] * 2
        x = numbers(3, 4, 10, 9)
        assert error_of(execute(engine, x), wanted(x)) < (_HALF_ERROR if half2 else 1e-4)
        context = engine.create_execution_context()
        with pytest.raises(BindingError, match="float16"):
            context.execute(3, [x.astype(np.float16), np.empty((3, 8, 10, 9), np.float32)])


def too_large_a_batch_is_refused_in_either_call() -> None:
    engine = build()
    buffers = Buffers(engine, MAX_BATCH + 1)
    context = engine.create_execution_context()
    with pytest.raises(ContextError, match=f"at most {MAX_BATCH}"):
        context.execute(MAX_BATCH + 1, buffers.addresses)
    with smelt.Stream("cuda") as stream, pytest.raises(ContextError, match=f"at most {MAX_BATCH}"):
        context.enqueue(MAX_BATCH + 1, buffers.addresses, stream)


def copies_and_an_enqueued_run_follow_one_another_on_the_applications_stream() -> None:
    """Copy in, enqueue, copy out, wait once: the sample's flow."""
    engine = build()
    context, device = engine.create_execution_context(), selected_device()
    for batch in (MAX_BATCH, 1):
        buffers = Buffers(engine, batch)
        x, found = numbers(batch, 4, 10, 9), np.full((batch, 8, 10, 9), np.nan, np.float32)
        with smelt.Stream("cuda") as stream:
            raw = CudaStream(device, stream)
            source, target = int(x.ctypes.data), int(found.ctypes.data)
            copy_memory(device, buffers.addresses[0], source, x.nbytes, raw)
            assert context.enqueue(batch, buffers.addresses, stream)
            copy_memory(device, target, buffers.addresses[1], found.nbytes, raw)
            stream.synchronize()
        assert error_of(found, wanted(x)) < 1e-4


def the_event_says_when_inputs_may_be_refilled() -> None:
    engine = build()
    buffers, consumed = Buffers(engine, 2), smelt.Event("cuda")
    x = numbers(2, 4, 10, 9)
    buffers.write("data", x)
    context = engine.create_execution_context()
    with smelt.Stream("cuda") as stream:
        context.enqueue(2, buffers.addresses, stream, consumed)
        consumed.synchronize()
        buffers.write("data", x * 0 - 99)
        stream.synchronize()
    assert error_of(buffers.read("out"), wanted(x)) < 1e-4


def the_profiler_hears_of_every_layer_also_when_asynchronous() -> None:
    engine = build()
    buffers, profiler = Buffers(engine, 2), AccumulatingProfiler()
    buffers.write("data", numbers(2, 4, 10, 9))
    context = engine.create_execution_context()
    context.profiler = profiler
    for _ in range(3):
        context.execute(2, buffers.addresses)
    assert profiler.calls == layer_names(engine) * 3
    with smelt.Stream("cuda") as stream:
        context.enqueue(2, buffers.addresses, stream)
        stream.synchronize()
    assert profiler.calls == layer_names(engine) * 4
    assert any("conv + relu" in name for name in profiler.calls)
    assert {"conv", "relu"}.isdisjoint(profiler.calls)
    assert all(0 <= mean < 1000 for mean in profiler.means(4).values())


# ---- half2 (guide, chapter 3.6)


def formats_of(engine: gie.CudaEngine) -> list[str]:
    """The format of every tensor that layers read or write, as the build's report has them."""
    nodes = report(engine)["nodes"]
    return [str(f) for node in nodes for f in (*node["input_formats"], *node["output_formats"])]


def half2_mode_stores_sixteen_bits_between_layers_and_is_off_by_default() -> None:
    plain, half2 = (build(half2=mode, network=_layers(3, 8, 10)) for mode in (False, True))
    assert not any("float16" in text for text in formats_of(plain))
    assert "float16/paired" in formats_of(half2)


def sixteen_bit_weights_alone_change_few_digits() -> None:
    engine = build(kind=gie.DataType.HALF)
    x = numbers(2, 4, 10, 9)
    assert error_of(execute(engine, x), wanted(x)) < _HALF_ERROR


def half2_takes_sixteen_bit_weights_and_the_mode() -> None:
    engine = build(half2=True, kind=gie.DataType.HALF2)
    x = numbers(2, 4, 10, 9)
    assert error_of(execute(engine, x), wanted(x)) < _HALF_ERROR


def odd_batches_run_in_half2() -> None:
    engine = build(half2=True)
    everything = numbers(MAX_BATCH, 4, 10, 9)
    right = wanted(everything)
    for batch in range(1, MAX_BATCH + 1):
        mine = execute(engine, everything[:batch])
        assert error_of(mine, right[:batch]) < _HALF_ERROR, batch


def half2_is_the_fastest_mode_for_larger_batches() -> None:
    """On a GPU that computes in 16 bits; also where one image has no other beside it."""
    batch, times = 16, dict[bool, list[float]]()
    for half2 in (False, True):
        builder = gie.create_infer_builder(RecordingLogger())
        builder.device, builder.half2_mode, builder.max_batch_size = "cuda", half2, batch
        assert builder.platform_has_fast_fp16
        engine = builder.build_cuda_engine(_layers(2, 64, 56))
        times[half2] = [milliseconds(engine, count) for count in (2, 3, batch - 1, batch)]
    assert all(half < full for half, full in zip(times[True], times[False], strict=True)), times


def milliseconds(engine: gie.CudaEngine, batch: int, runs: int = 20) -> float:
    """The least time of a run among several, on the GPU."""
    buffers, context = Buffers(engine, batch), engine.create_execution_context()
    marks = [smelt.Event("cuda") for _ in range(runs + 1)]
    with smelt.Stream("cuda") as stream:
        for _ in range(3):
            context.enqueue(batch, buffers.addresses, stream)
        for mark in marks[:-1]:
            mark.record(stream)
            context.enqueue(batch, buffers.addresses, stream)
        marks[-1].record(stream)
        stream.synchronize()
    return min(before.elapsed(after) for before, after in pairwise(marks))


def candidates_are_timed_and_the_fastest_is_chosen() -> None:
    """The builder runs layers on made-up data on this very GPU."""
    engine = build()
    measured = [seconds for times in candidates_times(engine).values() for _, seconds in times]
    assert len(measured) >= 2
    assert all(seconds > 1e-7 for seconds in measured)
    for name, times in candidates_times(engine).items():
        (node,) = [node for node in report(engine)["nodes"] if node["name"] == name]
        alone, chosen = dict(times), node["tactic"].removesuffix(" pdl")
        # The whole network has the last word; it may prefer what is nearly the fastest alone.
        assert alone[chosen] <= 2 * min(alone.values())


# ---- several GPUs (guide, chapter 3.7)


@contextmanager
def _on(index: int) -> Generator[None]:
    """Let the thread have a GPU, as cudaSetDevice does."""
    device = cuda_device(index)
    previous = device.select()
    yield
    device.restore(previous)


def an_engine_is_bound_to_the_gpu_that_was_selected_when_it_was_made() -> None:
    x = numbers(2, 4, 10, 9)
    runtime = gie.create_infer_runtime(RecordingLogger())
    with _on(1):
        there = build()
    data = there.serialize()
    with _on(0):
        here = runtime.deserialize_cuda_engine(data)
    built = {1: there, 0: here}
    for index, engine in built.items():
        with _on(index):
            assert error_of(execute(engine, x, cuda_device(index)), wanted(x)) < 1e-4
        with _on(1 - index), pytest.raises(ContextError, match=f"bound to cuda:{index}"):
            execute(engine, x, cuda_device(index))


def a_context_is_bound_to_the_gpu_of_its_engine() -> None:
    with _on(1):
        engine = build()
    with _on(0):  # whatever is selected when the context is made
        context = engine.create_execution_context()
    buffers = Buffers(engine, 1, cuda_device(1))
    x = numbers(1, 4, 10, 9)
    buffers.write("data", x)
    with _on(1):
        assert context.execute(1, buffers.addresses)
    assert error_of(buffers.read("out"), wanted(x)) < 1e-4


def a_thread_with_another_gpu_selected_is_told_in_either_call() -> None:
    with _on(1):
        engine = build()
        context = engine.create_execution_context()
    buffers = Buffers(engine, 1, cuda_device(1))
    buffers.write("data", numbers(1, 4, 10, 9))
    with _on(0):
        with pytest.raises(ContextError, match=r"bound to cuda:1.*this thread is cuda:0"):
            context.execute(1, buffers.addresses)
        with (
            smelt.Stream("cuda:1") as stream,
            pytest.raises(ContextError, match="this thread is cuda:0"),
        ):
            context.enqueue(1, buffers.addresses, stream)
    with _on(1):
        assert context.execute(1, buffers.addresses)
