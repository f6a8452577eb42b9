"""Contexts: by name, by index, on streams, with any array, and refusing what does not fit."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from smelt.devices.cpu import CpuStream, processor_count
from smelt.errors import BindingError, ContextError, UnsupportedError
from smelt.runtime import Engine, Event, Stream
from tests.support.cgroups import let_run_on, write_cgroup
from tests.support.engines import (
    COLUMNS,
    MAX_BATCH,
    affine,
    affine_engine,
    affine_header,
    batch_of,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def engine() -> Engine:
    return affine_engine()


@pytest.fixture(autouse=True, params=["small arrays copied", "every array in place"])
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for arrays of any size; those here are small."""
    if request.param == "every array in place":
        monkeypatch.setattr("smelt.runtime._staging.STAGED_BYTES", 0)


NOTHING: list[int] = []


class Profiler:
    """Adds up times, as the sample does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        self.calls.append((name, milliseconds))


# ---- by name


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 3, MAX_BATCH])
def test_a_run_gives_the_same_bits_for_any_number_of_threads(
    engine: Engine, threads: int, rows: int
) -> None:
    x = batch_of(rows)
    with engine.create_context(threads=threads) as context:
        for _ in range(20):
            np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))


def test_batches_may_alternate(engine: Engine) -> None:
    with engine.create_context() as context:
        for rows in (1, 6, 2, 6, 1, 5, 3, 1):
            x = batch_of(rows, seed=rows)
            np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))


@pytest.mark.requirement("G-53")
def test_a_batch_above_the_maximum_is_refused_everywhere(engine: Engine) -> None:
    large = batch_of(MAX_BATCH + 1)
    with engine.create_context() as context, Stream() as stream:
        with pytest.raises(ContextError, match=r"batch size is 7.*at most 6.*max_batch_size=7"):
            context.run({"x": large})
        with pytest.raises(ContextError, match="at most 6"):
            context.execute(MAX_BATCH + 1, [large, large.copy()])
        with pytest.raises(ContextError, match="at most 6"):
            context.enqueue(MAX_BATCH + 1, [large, large.copy()], stream)
        assert context.run({"x": large[:1]})["y"].shape == (1, COLUMNS)


def variants() -> dict[str, Any]:
    x = batch_of(3)
    misaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    misaligned[:] = x
    readonly = x.copy()
    readonly.flags.writeable = False
    return {
        "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "reversed": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
        "fortran": np.asfortranarray(x),
        "read-only": readonly,
        "misaligned": misaligned,
        "broadcast": np.broadcast_to(x[0], x.shape),
        "view of bytes": np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    }


@pytest.mark.parametrize("kind", variants())
def test_any_arrangement_of_an_array_is_read_right(engine: Engine, kind: str) -> None:
    x = variants()[kind]
    with engine.create_context() as context:
        np.testing.assert_array_equal(context.run({"x": x})["y"], affine(np.ascontiguousarray(x)))


class DLPackOnly:
    """An array of a library of which only the protocol is known."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_an_array_of_another_library_comes_in_through_dlpack(engine: Engine) -> None:
    x = batch_of(2)
    with engine.create_context() as context:
        np.testing.assert_array_equal(context.run({"x": DLPackOnly(x)})["y"], affine(x))
        with pytest.raises(
            BindingError, match="x: the array is on device 3 of DLPack device type 2"
        ):
            context.run({"x": DLPackOnly(x, (2, 3))})


def test_results_come_back_in_the_library_of_the_inputs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library is known by its module, which must take DLPack."""

    class Tensor(DLPackOnly):
        """Stands for torch.Tensor."""

    class Library:
        """Stands for the module torch."""

        @staticmethod
        def from_dlpack(array: np.ndarray[Any, Any]) -> Tensor:
            return Tensor(np.from_dlpack(array))

    Tensor.__module__ = "fakelib.tensors"
    monkeypatch.setitem(__import__("sys").modules, "fakelib", Library)
    x = batch_of(2)
    with engine.create_context() as context:
        result = context.run({"x": Tensor(x)})["y"]
    assert isinstance(result, Tensor)
    np.testing.assert_array_equal(result.array, affine(x))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (batch_of(1).astype(np.float64), r"dtype float64, expected float32.*astype"),
        (batch_of(1).astype(np.int32), "dtype int32"),
        (batch_of(1).astype(">f4"), "not in native byte order"),
        ([[1.0] * COLUMNS], "dtype float64"),
        (batch_of(1)[0], r"shape \[24\] does not match \[batch, 24\]: the array has rank 1"),
        (batch_of(1)[:, 1:], r"shape \[1, 23\] does not match \[batch, 24\]: axis 1 must be 24"),
        (np.empty((0, COLUMNS), np.float32), "no plan for batch = 0.*batch 1 to 6"),
        (None, "dtype object"),
        ([[1.0], [1.0, 2.0]], "x: the array cannot be read"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_by_name(
    engine: Engine, value: Any, words: str
) -> None:
    with engine.create_context() as context, pytest.raises(BindingError, match=words):
        context.run({"x": value})


def test_missing_and_unknown_inputs_are_named(engine: Engine) -> None:
    with engine.create_context() as context:
        with pytest.raises(BindingError, match="inputs are x; missing: x; unknown: data"):
            context.run({"data": batch_of(1)})
        with pytest.raises(BindingError, match="missing: x"):
            context.run({})


def test_results_are_new_arrays_each_time(engine: Engine) -> None:
    x, other = batch_of(2), batch_of(2)[::-1]
    with engine.create_context() as context:
        first = context.run({"x": x})["y"]
        second = context.run({"x": other})["y"]
        np.testing.assert_array_equal(first, affine(x))
        np.testing.assert_array_equal(second, affine(other))
        first[:] = 0
        np.testing.assert_array_equal(context.run({"x": other})["y"], second)
    np.testing.assert_array_equal(second, affine(other))


# ---- by index


@pytest.mark.requirement("G-47", "G-48", "G-52")
def test_execute_takes_arrays_or_addresses_by_binding_index(engine: Engine) -> None:
    x, y = batch_of(4), np.zeros((4, COLUMNS), np.float32)
    bindings: list[Any] = [None, None]
    bindings[engine.binding_index("x")] = x
    bindings[engine.binding_index("y")] = y
    with engine.create_context() as context:
        context.execute(4, bindings)
        np.testing.assert_array_equal(y, affine(x))
        y[:] = 0
        context.execute(3, [x.ctypes.data, y.ctypes.data])
    np.testing.assert_array_equal(y[:3], affine(x[:3]))
    assert not y[3].any()


def test_arrays_for_the_largest_batch_serve_smaller_ones(engine: Engine) -> None:
    x, y = batch_of(MAX_BATCH), np.zeros((MAX_BATCH, COLUMNS), np.float32)
    flat = np.zeros(MAX_BATCH * COLUMNS, np.float32)
    with engine.create_context() as context:
        context.execute(2, [x, y])
        context.execute(2, [x.reshape(-1), flat])
    np.testing.assert_array_equal(y[:2], affine(x[:2]))
    np.testing.assert_array_equal(flat[: 2 * COLUMNS], y[:2].reshape(-1))
    assert not y[2:].any()


@pytest.mark.parametrize("batch", [0, -1, 1.0, "1", True])
def test_a_batch_that_is_no_positive_number_is_refused(engine: Engine, batch: Any) -> None:
    x = batch_of(1)
    with (
        engine.create_context() as context,
        pytest.raises(ContextError, match="it must be an integer of at least 1"),
    ):
        context.execute(batch, [x, x.copy()])


def test_bindings_that_do_not_fit_are_refused_by_name(engine: Engine) -> None:
    x, y = batch_of(2), batch_of(2)
    frozen = y.copy()
    frozen.flags.writeable = False
    with engine.create_context() as context:
        for bindings, words in (
            ([x], "the call passes 1 binding, but the engine has 2: x, y"),
            ([x, y, y], "the call passes 3 bindings"),
            ([x[:1], y], r"x: .* shape \[1, 24\], expected \[2, 24\]"),
            ([x[:, :20].copy(), y], r"x: the array has shape \[2, 20\]"),
            ([x.astype(np.float16), y], "x: the array has dtype float16"),
            ([x, y[:1]], "y: the array has shape"),
            ([x, y[:, ::-1]], "y: an output array must be C-contiguous"),
            ([x, np.asfortranarray(y)], "y: an output array must be C-contiguous"),
            ([x, frozen], "y: an output array must be C-contiguous"),
            ([x, y.astype(np.float64)], r"y: .* float64.* np\.empty\(shape, 'float32'\)"),
        ):
            with pytest.raises(BindingError, match=words):
                context.execute(2, bindings)


# ---- on streams


@pytest.mark.requirement("G-50", "G-51")
def test_enqueue_works_beside_the_caller_and_says_when_inputs_are_free(engine: Engine) -> None:
    x, y = batch_of(5), np.zeros((5, COLUMNS), np.float32)
    gate, consumed, done = threading.Event(), Event(), Event()
    with engine.create_context() as context, Stream("cpu") as stream:
        stream.submit(lambda: gate.wait(10))
        context.enqueue(5, [x, y], stream, input_consumed=consumed)
        done.record(stream)
        assert not y.any()
        assert not consumed.query()
        assert not done.query()
        gate.set()
        consumed.synchronize()
        done.synchronize()
        np.testing.assert_array_equal(y, affine(x))
        stream.synchronize()


def test_what_is_no_stream_or_event_is_refused(engine: Engine) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    nothing: Any = None
    with engine.create_context() as context, Stream() as stream:
        with pytest.raises(ContextError, match=r"smelt\.Stream of the CPU, not NoneType"):
            context.enqueue(1, [x, y], nothing)
        with pytest.raises(ContextError, match=r"must be a smelt\.Event of the CPU, not Stream"):
            context.enqueue(1, [x, y], stream, cast("Any", stream))
        context.enqueue(1, [x, y], stream)
        stream.synchronize()
    np.testing.assert_array_equal(y, affine(x))


def test_a_second_enqueue_waits_for_the_first_on_whatever_stream(engine: Engine) -> None:
    x = batch_of(1)
    first, second = np.zeros_like(x), np.zeros_like(x)
    gate = threading.Event()
    with engine.create_context() as context, Stream() as one, Stream() as other:
        one.submit(lambda: gate.wait(10))
        context.enqueue(1, [x, first], one)
        context.enqueue(1, [first, second], other)
        time.sleep(0.02)
        assert not second.any()
        gate.set()
        other.synchronize()
        np.testing.assert_array_equal(second, affine(affine(x)))


def test_a_synchronous_run_waits_for_what_was_enqueued(engine: Engine) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    with engine.create_context() as context, Stream() as stream:
        stream.submit(lambda: time.sleep(0.05))
        context.enqueue(1, [x, y], stream)
        result = context.run({"x": x})["y"]
        np.testing.assert_array_equal(y, result)


def test_arrays_live_until_an_enqueued_run_is_complete(engine: Engine) -> None:
    y = np.zeros((1, COLUMNS), np.float32)
    with engine.create_context() as context, Stream() as stream:
        for seed in range(20):
            stream.submit(lambda: time.sleep(0.001))
            context.enqueue(1, [batch_of(1, seed), y], stream)
        stream.synchronize()
    np.testing.assert_array_equal(y, affine(batch_of(1, 19)))


def test_closing_waits_for_what_was_enqueued(engine: Engine) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    with Stream() as stream:
        context = engine.create_context()
        stream.submit(lambda: time.sleep(0.05))
        context.enqueue(1, [x, y], stream)
        context.close()
        np.testing.assert_array_equal(y, affine(x))


def test_a_failed_stream_does_not_block_the_context(engine: Engine) -> None:
    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    consumed = Event()
    with engine.create_context() as context:
        with Stream() as stream:
            gate = threading.Event()
            stream.submit(lambda: gate.wait(10))
            stream.submit(lambda: NOTHING[1])
            context.enqueue(1, [x, y], stream, consumed)
            gate.set()
            with pytest.raises(IndexError):
                stream.synchronize()
        consumed.synchronize()
        closed = CpuStream()
        closed.close()
        with pytest.raises(Exception, match="closed"):
            context.enqueue(1, [x, y], closed, consumed)
        assert consumed.query()
        np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))


def test_streams_of_unknown_devices_are_refused() -> None:
    for make in (Stream, Event):
        with pytest.raises(UnsupportedError, match="device 'dla' does not exist"):
            make("dla")


# ---- profiling


@pytest.mark.requirement("G-55", "G-57", "G-58")
def test_every_layer_is_reported_once_for_each_execution(engine: Engine) -> None:
    profiler = Profiler()
    x, y = batch_of(6), batch_of(6)
    with engine.create_context(threads=2) as context:
        context.profiler = profiler
        for _ in range(10):
            context.execute(6, [x, y])
        context.run({"x": x})
        names = [name for name, _ in profiler.calls]
        assert names == ["scale1 + relu1", "shift1"] * 11
        assert all(0 < time < 1000 for _, time in profiler.calls)
        context.profiler = None
        context.run({"x": x})
        assert len(profiler.calls) == 22


@pytest.mark.requirement("G-56")
def test_profiling_works_with_enqueue_too(engine: Engine) -> None:
    profiler = Profiler()
    x, y = batch_of(6), batch_of(6)
    with engine.create_context(threads=2) as context, Stream() as stream:
        context.profiler = profiler
        for _ in range(3):
            context.enqueue(6, [x, y], stream)
        stream.synchronize()
    assert [name for name, _ in profiler.calls] == ["scale1 + relu1", "shift1"] * 3


def test_a_profiler_that_fails_fails_the_run_and_leaves_the_context_usable(
    engine: Engine,
) -> None:
    class Failing:
        def report_layer_time(self, name: str, milliseconds: float, /) -> None:
            raise ValueError(f"{name} {milliseconds}")

    with engine.create_context() as context:
        context.profiler = Failing()
        with pytest.raises(ValueError, match="scale1"):
            context.run({"x": batch_of(1)})
        context.profiler = None
        context.run({"x": batch_of(1)})


# ---- several at once, and the end


def test_a_busy_context_refuses_a_second_thread(engine: Engine) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Blocking:
        def report_layer_time(self, name: str, milliseconds: float, /) -> None:
            del name, milliseconds
            entered.set()
            leave.wait(10)

    with engine.create_context() as context:
        context.profiler = Blocking()
        thread = threading.Thread(target=lambda: context.run({"x": batch_of(1)}))
        thread.start()
        entered.wait(10)
        with pytest.raises(ContextError, match="busy in another thread"):
            context.run({"x": batch_of(1)})
        leave.set()
        thread.join()
        context.run({"x": batch_of(1)})


@pytest.mark.requirement("G-46")
def test_contexts_run_at_once_on_shared_weights_as_if_alone(engine: Engine) -> None:
    """8 threads with a context each; more in the slow version."""
    drive_contexts(engine, 8, 150)


@pytest.mark.slow
def test_ten_thousand_runs_at_once_leave_memory_flat(engine: Engine) -> None:
    drive_contexts(engine, 8, 100)
    before = resident_bytes()
    drive_contexts(engine, 8, 1250)
    assert resident_bytes() - before < 16 << 20


def drive_contexts(engine: Engine, count: int, runs: int) -> None:
    failures: list[str] = []

    def drive(seed: int) -> None:
        with engine.create_context(threads=1 + seed % 3) as context:
            for number in range(runs):
                x = batch_of(1 + (seed + number) % MAX_BATCH, seed)
                if not np.array_equal(context.run({"x": x})["y"], affine(x)):
                    failures.append(f"context {seed}, run {number}")

    threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_context_keeps_its_engine_and_closes_twice() -> None:
    context = affine_engine().create_context()
    x = batch_of(1)
    np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))
    assert context.engine.name == "affine"
    context.close()
    context.close()
    for use in (
        lambda: context.run({"x": x}),
        lambda: context.execute(1, [x, x.copy()]),
        lambda: context.enqueue(1, [x, x.copy()], Stream()),
    ):
        with pytest.raises(ContextError, match="closed"):
            use()


@pytest.mark.parametrize("threads", [0, -1, 2.0, "2", 5000])
def test_impossible_numbers_of_threads_are_refused(engine: Engine, threads: Any) -> None:
    with pytest.raises(ContextError, match="threads"):
        engine.create_context(threads=threads)


def test_the_number_of_threads_follows_the_flag(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_THREADS", "3")
    assert engine.create_context().threads == 3
    assert engine.create_context(threads=1).threads == 1
    monkeypatch.delenv("SMELT_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert engine.create_context().threads == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert engine.create_context().threads == processor_count()


def test_threads_are_as_many_as_the_quota_gives_processors(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_cgroup(tmp_path, {"cpu.max": "200000 100000"})
    monkeypatch.setattr("smelt.devices.cpu._processors._ROOT", tmp_path)
    let_run_on(range(16), monkeypatch)
    assert engine.create_context().threads == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert engine.create_context().threads == 5  # whoever says a number is believed


def test_an_interrupt_leaves_the_context_usable(engine: Engine) -> None:
    class Interrupting:
        def report_layer_time(self, name: str, milliseconds: float, /) -> None:
            del name, milliseconds
            signal.raise_signal(signal.SIGINT)

    with engine.create_context() as context:
        context.profiler = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            context.run({"x": batch_of(1)})
        context.profiler = None
        x = batch_of(2)
        np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))


# An interrupt inside a callback of the garbage collector is nobody's to catch.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_never_give_wrong_results(engine: Engine) -> None:
    """A timer fires all the time; a run either gives the right bits or is interrupted."""
    x, other = batch_of(3), batch_of(5)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    with engine.create_context(threads=2) as context:
        start = time.monotonic()
        while (passed := time.monotonic() - start) < 1 or (interrupted <= 10 and passed < 30):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                for _ in range(1000):
                    assert np.array_equal(context.run({"x": x})["y"], affine(x))
                    assert np.array_equal(context.run({"x": other})["y"], affine(other))
            except KeyboardInterrupt:
                interrupted += 1
            except RuntimeError as error:  # Python's own, if that comes while a thread starts
                if "unlocked lock" not in str(error):
                    raise
                interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert np.array_equal(context.run({"x": x})["y"], affine(x))
    assert interrupted > 10


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_runs_its_parents_context(engine: Engine) -> None:
    x = batch_of(4)
    with engine.create_context(threads=2) as context:
        context.run({"x": x})
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(context.run({"x": x})["y"], affine(x)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_memory_is_told_to_a_tracker_and_given_back(engine: Engine) -> None:
    taken: dict[str, int] = {}

    class Tracker:
        def allocated(self, address: int, size_bytes: int, tag: str) -> None:
            del address
            taken[tag] = taken.get(tag, 0) + size_bytes

        def released(self, address: int, size_bytes: int, tag: str) -> None:
            del address
            taken[tag] -= size_bytes

    context = engine.create_context(threads=2, tracker=Tracker())
    context.run({"x": batch_of(1)})
    assert taken["arena"] == 1024
    assert taken["scratch"] == 128
    context.close()
    assert set(taken.values()) == {0}


def test_the_null_device_binds_and_gives_zeros() -> None:
    header = affine_header()
    foreign = replace(header.fingerprint, device="null", features=("amx-tile",), system="none")
    with affine_engine(fingerprint=foreign).create_context() as context:
        profiler = context.profiler = Profiler()
        assert not context.run({"x": batch_of(2)})["y"].any()
        assert profiler.calls == [("scale1 + relu1", 0.0), ("shift1", 0.0)]
        with pytest.raises(BindingError):
            context.run({"x": batch_of(2)[:, 1:]})


@pytest.mark.parametrize("address", [0, 1, 4095, -8, 1 << 64, True, np.bool_(True)])  # noqa: FBT003
def test_a_number_that_is_no_address_is_refused(engine: Engine, address: int) -> None:
    detail = "bool" if str(address) == "True" else f"{address} is not a valid address"
    with engine.create_context() as context:
        for index, name in enumerate("xy"):
            arrays: list[Any] = [batch_of(1), batch_of(1)]
            arrays[index] = address
            with pytest.raises(BindingError, match=f"{name}: .*{detail}"):
                context.execute(1, arrays)


def test_arrays_without_their_names_are_refused_with_what_to_write(engine: Engine) -> None:
    anything: Any = batch_of(1)
    with (
        engine.create_context() as context,
        pytest.raises(BindingError, match=r"by name, e\.g\. \{'x': array\}, not ndarray"),
    ):
        context.run(anything)
