"""Memory of a GPU follows what a run decides, up to what there are addresses for."""

from __future__ import annotations

import ctypes
import gc
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import CudaMemory, cuda_device
from smelt.engine import Binding, Buffer, HostCall, KernelSpec, Launch, Plan, Space, parameters
from smelt.errors import DeviceError
from smelt.types import DType, SymbolicDim
from tests.support.cuda_driver_stub import GRANULE, CUresult
from tests.support.cuda_engines import StubGpuArray, bytes_at, engine_of, gpu_header, image_of
from tests.support.engines import BATCH, counting_header, view
from tests.support.failing_allocations import Countdown, Tracker, let_driver_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import EngineHeader
    from smelt.runtime import Engine, ExecutionContext
    from tests.support.cuda_driver_stub import StubDriver

Array = np.ndarray[Any, Any]
MAX_ROWS, COLUMNS = 64, 512
MOST = MAX_ROWS * COLUMNS
"""Elements of x that are not zero, of which a run finds the indices."""
INDICES_BYTES = 16
"""Of one such element: they lie in the arena."""
OUTER = KernelSpec("rowwise", parameters(operation="outer"))
COUNT = SymbolicDim.symbol("count")


def outer_header() -> EngineHeader:
    """Y[b, i] = b - the column of the i-th element of x that is not zero."""
    header = counting_header()
    (plan,) = header.plans
    (call,) = plan.steps
    assert isinstance(call, HostCall)
    found = replace(view(2, 2, COUNT), dtype=DType.INT64)
    out = replace(view(1, BATCH, COUNT), dtype=DType.INT64)
    x = replace(view(0, BATCH, COLUMNS), dtype=DType.FLOAT32)
    plan = Plan(
        symbols=(("batch", 1, MAX_ROWS), ("count", 0, MOST)),
        buffers=(
            Buffer(Space.INPUT, 0, MOST * 4),
            Buffer(Space.OUTPUT, 1, MOST * MAX_ROWS * 8),
            Buffer(Space.ARENA, 0, MOST * INDICES_BYTES),
        ),
        steps=(
            replace(call, inputs=(x,), outputs=(found,)),
            Launch(OUTER, (found, out), writes=(1,), scalars=(COUNT,), chunks=BATCH),
        ),
        arena_bytes=MOST * INDICES_BYTES,
        scratch_bytes=0,
    )
    bindings = (
        Binding("x", is_input=True, dtype=DType.FLOAT32, shape=(BATCH, COLUMNS)),
        Binding("y", is_input=False, dtype=DType.INT64, shape=(BATCH, COUNT)),
    )
    return replace(header, plans=(plan,), bindings=bindings, max_batch_size=MAX_ROWS)


def _outer(words: list[int], blocks: int) -> None:
    found, out, count = words[:3]
    if count:
        columns = numbers_at(found, 2 * count)[count:]
        numbers_at(out, blocks * count)[:] = np.subtract.outer(np.arange(blocks), columns).ravel()


def numbers_at(address: int, count: int) -> Array:
    """So many int64 numbers at an address of the stub's memory."""
    return bytes_at(address, count * 8).view(np.int64)


def outer_engine(stub: StubDriver) -> Engine:
    stub.kernels[OUTER.symbol], stub.words[OUTER.symbol] = _outer, 5
    code, symbols = image_of((OUTER,))
    return engine_of(gpu_header(outer_header(), symbols), b"", code)


@pytest.fixture
def engine(stub: StubDriver) -> Iterator[Engine]:
    with outer_engine(stub) as found:
        yield found


def input_of(count: int, rows: int) -> Array:
    x = np.zeros(rows * COLUMNS, np.float32)
    x[np.random.default_rng(count).permutation(x.size)[:count]] = 1
    return x.reshape(rows, COLUMNS)


def wanted_of(x: Array) -> Array:
    return np.subtract.outer(np.arange(len(x)), np.nonzero(x)[1])


def check(context: ExecutionContext, count: int, rows: int = 16) -> None:
    x = input_of(count, rows)
    np.testing.assert_array_equal(context.run({"x": x})["y"], wanted_of(x))


def test_memory_follows_the_count(engine: Engine) -> None:
    tracker = Tracker()
    with engine.create_context(tracker=tracker) as context:
        assert not tracker.taken.get("arena")
        most = 0
        for count in (0, 1, 2_000, 300):
            check(context, count)
            most = max(count, most)
            assert most * INDICES_BYTES <= tracker.taken.get("arena", 0)
            assert tracker.taken.get("arena", 0) <= most * INDICES_BYTES + GRANULE
    assert not tracker.balance


def test_memory_for_results_on_the_gpu_follows_the_count(engine: Engine) -> None:
    tracker, x = Tracker(), input_of(2_000, 16)
    with engine.create_context(tracker=tracker) as context:
        there = context.run({"x": StubGpuArray(x).array})["y"]
        there.synchronize()
        made = 2_000 * 16 * 8
        assert there.shape == (16, 2_000)
        assert there.allocation.size_bytes == made
        assert tracker.taken["staging"] <= made + GRANULE
        found = numbers_at(there.allocation.address, 2_000 * 16)
        np.testing.assert_array_equal(found.reshape(16, -1), wanted_of(x))


def test_a_place_that_is_made_anew_where_it_was_has_memory_for_a_recorded_run(
    engine: Engine,
) -> None:
    there = StubGpuArray(np.zeros((60, COLUMNS), np.float32))
    with engine.create_context() as context:
        for rows, count in ((4, 900), (4, 900), (60, 9), (4, 900)):
            x, y = input_of(count, rows), np.zeros((rows, MOST), np.int64)
            ctypes.memmove(there.address, x.ctypes.data, x.nbytes)
            context.execute(rows, [there.address, y])
            found = y.ravel()[: rows * count].reshape(rows, count)
            np.testing.assert_array_equal(found, wanted_of(x))


def test_a_run_that_was_recorded_elsewhere_has_memory_in_its_place(engine: Engine) -> None:
    x = input_of(900, 4)
    with (
        engine.create_context() as context,
        closing(CudaMemory(cuda_device()).allocate(4 * MOST * 8, "test")) as y,
    ):
        check(context, 9, 4)
        for _ in range(2):
            context.execute(4, [x, y.address])
            found = numbers_at(y.address, 4 * 900).reshape(4, -1)
            np.testing.assert_array_equal(found, wanted_of(x))
        check(context, 900, 4)


@pytest.mark.parametrize(
    "function",
    ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async"],
)
def test_a_run_that_gets_no_memory_leaves_the_context_usable(
    engine: Engine, stub: StubDriver, function: str
) -> None:
    with engine.create_context() as context:
        check(context, 1, 2)
        stub.failures[function] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
            check(context, 9_000, 20)
        check(context, 9_000, 20)


def test_results_that_get_no_memory_leave_the_context_usable(
    engine: Engine, stub: StubDriver
) -> None:
    with engine.create_context() as context:
        check(context, 9, 2)
        given = StubGpuArray(input_of(9, 2)).array
        stub.failures["cuMemAlloc"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(DeviceError, match="results: 144 bytes cannot be allocated"):
            context.run({"x": given})
        check(context, 9, 2)


def test_too_little_memory_is_an_error_that_says_for_what(engine: Engine, stub: StubDriver) -> None:
    with engine.create_context() as context:
        check(context, 1, 20)
        stub.memory, memory = 100_000, stub.memory
        with pytest.raises(DeviceError, match=r"arena: \d{6} bytes cannot be allocated on"):
            check(context, 9_000, 20)
        stub.memory = memory
        check(context, 9_000, 20)


@pytest.mark.slow
def test_each_allocation_of_a_run_may_fail_and_nothing_is_lost(
    engine: Engine, stub: StubDriver
) -> None:
    countdown, tracker, number, left = Countdown(), Tracker(), 0, 0
    let_driver_fail(stub, countdown)
    while left <= 0:
        number += 1
        countdown.set(number)
        try:
            with engine.create_context(tracker=tracker) as context:
                check(context, 900)
        except DeviceError:
            assert countdown.left <= 0
        left = countdown.left
        countdown.set(0)
        gc.collect()
        assert not tracker.balance
    assert number > 5


def test_a_gpu_that_cannot_map_memory_has_it_from_the_start(stub: StubDriver) -> None:
    stub.has_virtual_memory = False
    tracker = Tracker()
    with outer_engine(stub) as engine, engine.create_context(tracker=tracker) as context:
        assert tracker.taken["arena"] == MOST * INDICES_BYTES
        check(context, 900)
