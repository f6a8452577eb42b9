"""Run lists and workers: right for any number of threads, however late a worker comes."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends.cpu import compile_ir, host_target, link
from smelt.backends.cpu._native_runtime import runtime_image
from smelt.devices.cpu import (
    CpuMemory,
    Lease,
    MappedCode,
    NativeRuntime,
    RunList,
    RunListRow,
    Scratch,
    WorkerPool,
    abi,
    available_processors,
    native_runtime,
    worker_pool,
)
from smelt.engine import detect_host
from smelt.errors import ContextError, EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STEP = """
define void @step(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
 %x = load ptr, ptr %args
 %yp = getelementptr i8, ptr %args, i64 8
 %y = load ptr, ptr %yp
 %kp = getelementptr i8, ptr %args, i64 16
 %k = load i64, ptr %kp
 br label %head
head:
 %i = phi i64 [%begin, %entry], [%n, %body]
 %more = icmp slt i64 %i, %end
 br i1 %more, label %body, label %done
body:
 %xi = getelementptr i64, ptr %x, i64 %i
 %yi = getelementptr i64, ptr %y, i64 %i
 %a = load i64, ptr %xi
 store i64 %a, ptr %scratch
 %b = load volatile i64, ptr %scratch
 %m = mul i64 %b, 3
 %s = add i64 %m, %k
 store i64 %s, ptr %yi
 %n = add i64 %i, 1
 br label %head
done:
 ret void
}
"""
"""y[i] = 3 x[i] + k, by way of the scratch memory."""


class Bench:
    """Chains of `STEP`: row r writes array r + 1 from array r."""

    def __init__(self) -> None:
        image, symbols = link([compile_ir(STEP, host_target())])
        self._code = MappedCode(image)
        self.function = self._code.address + dict(symbols)["step"]
        runtime, names = runtime_image(detect_host().architecture)
        self.runtime: NativeRuntime = native_runtime(runtime, dict(names))
        self.memory = CpuMemory()

    def chain(
        self,
        chunks: Sequence[int],
        threads: int,
        pool: WorkerPool | None = None,
        *,
        may_run_alone: bool = False,
    ) -> tuple[RunList, list[np.ndarray[Any, np.dtype[np.int64]]]]:
        size = max([*chunks, 1])
        arrays = [np.arange(size) + r for r in range(len(chunks) + 1)]
        made = RunList(
            [RunListRow(self.function, 3, r) for r in range(len(chunks))],
            self.runtime,
            pool or worker_pool(),
            self.memory,
            threads=threads,
            scratch=Scratch(self.memory, 8, threads),
            may_run_alone=may_run_alone,
        )
        for r in range(len(chunks)):
            made.words[3 * r : 3 * r + 3] = [arrays[r].ctypes.data, arrays[r + 1].ctypes.data, r]
        made.set_chunks(chunks)
        return made, arrays


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture(params=[True, False], ids=["futex", "condition variables"])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    made = WorkerPool(waits_natively=request.param)
    yield made
    made.dismiss()


def expected(chunks: Sequence[int]) -> list[int]:
    """The last array's elements, when every row has so many chunks."""
    values = list(range(chunks[0]))
    for r in range(len(chunks)):
        values = [3 * v + r for v in values]
    return values


@pytest.mark.parametrize("threads", [1, 2, 4, 7])
def test_rows_run_in_order_for_any_number_of_threads(
    bench: Bench, pool: WorkerPool, threads: int
) -> None:
    chunks = [97] * 12
    run_list, arrays = bench.chain(chunks, threads, pool)
    for _ in range(50):
        for array in arrays[1:]:
            array[:] = -1
        run_list.run()
        assert arrays[-1].tolist() == expected(chunks)
    run_list.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_lists_without_rows_and_rows_without_chunks_end_at_once(
    bench: Bench, pool: WorkerPool, threads: int
) -> None:
    empty, _ = bench.chain([], threads, pool)
    empty.run(timed=True)
    assert empty.row_ticks() == []
    empty.close()
    holes, arrays = bench.chain([0, 5, 0, 0, 5, 0], threads, pool)
    for _ in range(20):
        holes.run(timed=True)
    assert arrays[2][:5].tolist() == [3 * (v + 1) + 1 for v in range(5)]
    ticks = holes.row_ticks()
    assert [t == 0 for t in ticks] == [True, False, True, True, False, True]
    holes.close()


def test_a_list_that_may_run_alone_computes_the_same(bench: Bench, pool: WorkerPool) -> None:
    run_list, arrays = bench.chain([7] * 3, 2, pool, may_run_alone=True)
    for _ in range(40):
        arrays[3][:] = -1
        run_list.run()
        assert arrays[3].tolist() == [9 * (3 * v) + 5 for v in range(7)]
    run_list.close()


def test_rows_that_need_not_wait_run_beside_each_other(bench: Bench) -> None:
    """Both rows of a pair read the same array; the next pair waits for both."""
    arrays = [np.arange(64), np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(64, np.int64)]
    run_list = RunList(
        [
            RunListRow(bench.function, 3, 0),
            RunListRow(bench.function, 3, 0),
            RunListRow(bench.function, 3, 2),
        ],
        bench.runtime,
        worker_pool(),
        bench.memory,
        threads=3,
        scratch=Scratch(bench.memory, 8, 3),
    )
    pointers = [array.ctypes.data for array in arrays]
    first, second = (pointers[0], pointers[1], 1), (pointers[0], pointers[2], 2)
    run_list.words[:] = [*first, *second, pointers[2], pointers[3], 0]
    run_list.set_chunks([64, 64, 64])
    for _ in range(200):
        arrays[3][:] = 0
        run_list.run()
        np.testing.assert_array_equal(arrays[3], 3 * (3 * arrays[0] + 2))
    run_list.close()


def test_chunks_may_change_between_runs_while_workers_are_late(
    bench: Bench, pool: WorkerPool
) -> None:
    chance = random.Random(5)  # noqa: S311  (a test's choice)
    run_list, arrays = bench.chain([64] * 6, 4, pool)
    for _ in range(300):
        chunks = [chance.randint(0, 64)] * 6
        run_list.set_chunks(chunks)
        for array in arrays[1:]:
            array[:] = -1
        run_list.run()
        assert arrays[-1][: chunks[0]].tolist() == expected(chunks)
        assert (arrays[-1][chunks[0] :] == -1).all()
    run_list.close()


def test_impossible_numbers_of_chunks_are_refused(bench: Bench) -> None:
    run_list, _ = bench.chain([1], 1)
    for count in (-1, abi.MAX_CHUNKS + 1):
        with pytest.raises(ContextError, match="chunks"):
            run_list.set_chunks([count])
    run_list.close()


@pytest.mark.slow
def test_late_and_stale_workers_never_touch_a_later_run(bench: Bench) -> None:
    """More lists and workers than processors, so that workers are preempted everywhere."""
    pool = WorkerPool()
    failures: list[str] = []

    def drive(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  (a test's choice)
        run_list, arrays = bench.chain([16] * 5, 6, pool)
        now = [16] * 5
        for round_number in range(1500):
            chunks = [chance.choice((0, 1, 7, 16))] * 5
            if round_number % 3 == 0:
                run_list.set_chunks(chunks)
                now = chunks
            start = chance.randint(0, 1000)
            arrays[0][:] = np.arange(16) + start
            run_list.run()
            want = [v + 3**5 * start for v in expected(now)]
            if arrays[-1][: now[0]].tolist() != want:
                failures.append(f"{seed}: round {round_number}")
                break
            if round_number % 500 == 499:
                run_list.close()
                run_list, arrays = bench.chain([16] * 5, 6, pool)
                run_list.set_chunks(now)
        run_list.close()

    drivers = [threading.Thread(target=drive, args=(seed,)) for seed in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    pool.dismiss()
    assert not failures


def test_workers_sleep_between_runs(bench: Bench) -> None:
    run_list, _ = bench.chain([64] * 4, 4)
    for _ in range(10):
        run_list.run()
    end, used = time.monotonic() + 10, 1.0
    while used >= 0.05 and time.monotonic() < end:  # the last moments of the runs may be in one
        before = time.process_time()
        time.sleep(0.3)
        used = time.process_time() - before
    run_list.close()
    assert used < 0.05


def test_a_pool_grows_to_what_one_run_wants_and_no_further(bench: Bench) -> None:
    pool = WorkerPool()
    first, second, again = Lease(), Lease(), Lease()
    pool.lease(first, 2, bench.runtime)
    workers = list(first.workers)
    assert len(workers) == 2
    pool.lease(second, 2, bench.runtime)
    assert second.workers == []
    pool.release(first)
    pool.lease(again, 1, bench.runtime)
    assert again.workers[0] in workers
    del again  # an interrupted run does not release
    pool.lease(second, 2, bench.runtime)
    assert set(second.workers) == set(workers)
    pool.release(second)
    assert pool.size == 2
    pool.dismiss()
    assert pool.size == 0


def test_workers_stay_off_the_callers_processor_and_follow_when_it_moves(bench: Bench) -> None:
    processors = available_processors()
    if len(processors) < 2:
        pytest.skip("one processor leaves no other")
    pool = WorkerPool()
    run_list, _ = bench.chain([4], 2, pool)
    try:
        for processor in sorted(processors):
            os.sched_setaffinity(0, {processor})
            run_list.run()
            lease = Lease()
            pool.lease(lease, 1, bench.runtime)
            for worker in lease.workers:
                native_id = worker.thread.native_id
                assert native_id is not None
                assert os.sched_getaffinity(native_id) == processors - {processor}
            pool.release(lease)
    finally:
        os.sched_setaffinity(0, processors)
        run_list.close()
        pool.dismiss()


def test_one_pool_serves_a_set_of_processors() -> None:
    assert worker_pool() is worker_pool()
    processors = sorted(available_processors())
    if len(processors) < 2:
        pytest.skip("one processor has no subsets")
    found: list[WorkerPool] = []

    def confined() -> None:
        os.sched_setaffinity(0, processors[:1])
        found.append(worker_pool())

    thread = threading.Thread(target=confined)
    thread.start()
    thread.join()
    assert found[0] is not worker_pool()


def test_a_closed_list_refuses_to_run_and_closes_again(bench: Bench) -> None:
    run_list, _ = bench.chain([4], 2)
    run_list.run()
    run_list.close()
    run_list.close()
    with pytest.raises(ContextError, match="closed"):
        run_list.run()


def test_a_list_may_be_forgotten_while_workers_are_late(bench: Bench) -> None:
    for _ in range(300):
        run_list, arrays = bench.chain([3] * 4, 6)
        run_list.run()
        assert arrays[-1][:3].tolist() == expected([3] * 4)
        del run_list


SPIN = """
define void @spin(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
 %at = getelementptr i64, ptr %args, i64 2
 %n = load i64, ptr %at
 br label %head
head:
 %i = phi i64 [0, %entry], [%next, %head]
 %next = add i64 %i, 1
 store volatile i64 %next, ptr %scratch
 %more = icmp slt i64 %next, %n
 br i1 %more, label %head, label %done
done:
 ret void
}
"""
"""Takes as long as its scalar says."""


WHO = SPIN.replace("@spin", "@who").replace(
    "done:\n",
    """done:
 %out = load ptr, ptr %args
 %me = ptrtoint ptr %scratch to i64
 %mine = getelementptr i64, ptr %out, i64 %begin
 store i64 %me, ptr %mine
""",
)
"""Takes its time, and tells which scratch memory it had for its first chunk."""


def test_workers_share_the_chunks_of_a_row(bench: Bench) -> None:
    image, symbols = link([compile_ir(WHO, host_target())])
    code = MappedCode(image)
    run_list = RunList(
        [RunListRow(code.address + dict(symbols)["who"], 3, 0)],
        bench.runtime,
        worker_pool(),
        bench.memory,
        threads=2,
        scratch=Scratch(bench.memory, 8, 2),
    )
    out = np.zeros(64, np.int64)
    run_list.words[:] = [out.ctypes.data, 0, 50_000]
    run_list.set_chunks([64])
    end = time.monotonic() + 30
    while len(set(out.tolist()) - {0}) < 2 and time.monotonic() < end:
        out[:] = 0
        run_list.run()  # a busy machine may keep the worker from its processor for a while
    run_list.close()
    assert len(set(out.tolist()) - {0}) == 2


def test_a_long_wait_sleeps(bench: Bench) -> None:
    """Of three threads one has work; the others must not use up processors meanwhile."""
    image, symbols = link([compile_ir(SPIN, host_target())])
    code = MappedCode(image)
    run_list = RunList(
        [RunListRow(code.address + dict(symbols)["spin"], 3, r) for r in range(2)],
        bench.runtime,
        worker_pool(),
        bench.memory,
        threads=3,
        scratch=Scratch(bench.memory, 8, 3),
    )
    spins, used, passed = 300_000_000, 0.0, 0.0
    while passed < 0.1:  # more on a faster machine: a waiter's few microseconds must not count
        run_list.words[:] = [0, 0, spins] * 2
        run_list.set_chunks([1, 1])
        used, passed = time.process_time(), time.perf_counter()
        run_list.run()
        used, passed = time.process_time() - used, time.perf_counter() - passed
        spins *= 2
    run_list.close()
    assert used < 1.5 * passed


def test_times_add_up_to_the_run(bench: Bench) -> None:
    run_list, _ = bench.chain([200_000] * 3, 2)
    before = time.perf_counter()
    run_list.run(timed=True)
    taken = (time.perf_counter() - before) * 1e3
    times = [ticks * bench.runtime.milliseconds_per_tick() for ticks in run_list.row_ticks()]
    assert all(t > 0 for t in times)
    assert sum(times) <= taken * 1.05
    run_list.close()


def test_floating_point_modes_of_the_caller_do_not_matter_and_stay(bench: Bench) -> None:
    """Numpy's error state reads the modes; a run leaves them as they were."""
    before = np.geterr()
    run_list, _ = bench.chain([8], 2)
    run_list.run()
    run_list.close()
    assert np.geterr() == before


def test_a_runtime_without_its_functions_is_refused() -> None:
    image, symbols = runtime_image(detect_host().architecture)
    with pytest.raises(EngineFormatError, match=abi.RUN):
        native_runtime(image, {k: v for k, v in symbols if k != abi.RUN})
    with pytest.raises(EngineFormatError, match="outside"):
        native_runtime(image, {**dict(symbols), abi.RUN: len(image)})


def test_a_runtime_without_workers_is_driven_from_python(bench: Bench) -> None:
    image, symbols = runtime_image(detect_host().architecture, "darwin")
    runtime = native_runtime(image, dict(symbols))
    assert not runtime.has_workers
    pool = WorkerPool()
    plain, bench_runtime = bench.runtime, bench
    bench_runtime.runtime = runtime
    try:
        for threads in (1, 3):
            run_list, arrays = bench.chain([33] * 4, threads, pool)
            run_list.run()
            assert arrays[-1].tolist() == expected([33] * 4)
            run_list.close()
    finally:
        bench_runtime.runtime = plain
        pool.dismiss()


PROGRAM = """
import os, sys, threading
from tests.devices.test_run_list import Bench, expected
bench = Bench()
run_list, arrays = bench.chain([50] * 5, 3)
def check():
    arrays[-1][:] = 0
    run_list.run()
    assert arrays[-1].tolist() == expected([50] * 5)
for _ in range(20):
    check()
"""


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-X",
            "faulthandler",
            "-c",
            PROGRAM + textwrap.dedent(text),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "src"},
    )


def test_a_forked_child_makes_its_own_workers() -> None:
    done = run_program("""
        import warnings
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            for _ in range(20):
                check()
            run_list.close()
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(7)
            os._exit(0 if os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        check()
        run_list.close()
        print("both ran")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "both ran\n", "")


@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit(0)", "run_list.close()", "del run_list, bench", "import gc; gc.collect()"],
)
@pytest.mark.slow
def test_nothing_crashes_at_exit(ending: str) -> None:
    done = run_program(ending)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_crashes_at_exit_while_another_thread_runs() -> None:
    done = run_program("""
        def forever():
            while True:
                run_list.run()
        threading.Thread(target=forever, daemon=True).start()
        import time
        time.sleep(0.1)
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_is_given_back(bench: Bench) -> None:
    taken: dict[int, int] = {}

    class Tracker:
        def allocated(self, address: int, size_bytes: int, tag: str) -> None:
            assert tag
            taken[address] = size_bytes

        def released(self, address: int, size_bytes: int, tag: str) -> None:
            assert tag
            assert taken.pop(address) == size_bytes

    memory = CpuMemory(Tracker())
    scratch = Scratch(memory, 100, 2)
    assert scratch.stride == 128
    run_list = RunList([], bench.runtime, worker_pool(), memory, threads=2, scratch=scratch)
    assert sum(taken.values()) >= 256
    run_list.close()
    scratch.close()
    gc.collect()
    assert not taken
