"""Trials on a GPU, here the driver's stub with a clock: right on fresh data, then the fastest."""

from __future__ import annotations

import gc
import logging
import math
from typing import Any

import numpy as np
import pytest

from smelt import ops
from smelt.backends.cuda import cache_flush_kernel
from smelt.backends.cuda.families.cublaslt import CublasLtFamily
from smelt.devices.cuda import CudaDevice, Driver, open_cublaslt
from smelt.errors import BuildError
from smelt.ir import Graph
from smelt.tuner import BenchmarkTimer, CudaBench, TimingCache
from smelt.types import DType, TensorType
from tests.support.cublaslt_stub import StubCublasLt
from tests.support.cuda_engines import use_stub
from tests.support.cuda_stub_candidates import (
    HOPPER,
    ClockedStub,
    StubBackend,
    kernel_of,
    node_of,
    tactic_of,
)


class Bench:
    """A laboratory on the stub, with a node."""

    def __init__(self, dtype: DType = DType.FLOAT32) -> None:
        self.stub = ClockedStub()
        self.device = CudaDevice(Driver(self.stub), 0)
        self.backend = StubBackend(self.stub, dtype)
        self.lab = CudaBench(self.backend, HOPPER, self.device, sizes={})
        self.cache = TimingCache()
        self.dtype = dtype
        self.node = node_of(dtype)

    def timer(self, **options: Any) -> BenchmarkTimer:
        return BenchmarkTimer(self.lab, self.cache, max_timed=8, repeats=3, **options)

    def seconds(self, *kinds: str) -> list[float]:
        tactics = [tactic_of(kind, self.dtype) for kind in kinds]
        return self.timer().seconds(self.node, tactics)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_each_right_candidate_gets_the_time_of_one_launch(dtype: DType) -> None:
    assert Bench(dtype).seconds("slow", "fast") == pytest.approx([2e-5, 1e-5])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("wrong", "the error is"),
        ("short", "the error is inf"),
        ("moving", "differ between runs"),
        ("racing", "differ between runs"),
        ("broken", "kernel broken does not compile"),
        ("too large", "shared memory"),
    ],
)
def test_a_bad_candidate_never_wins_and_harms_no_other(
    kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    with caplog.at_level(logging.WARNING):
        assert bench.seconds("slow", kind, "fast") == [
            pytest.approx(2e-5),
            math.inf,
            pytest.approx(1e-5),
        ]
    assert reason in caplog.text
    assert reason in bench.lab.refused["node", str(tactic_of(kind, bench.dtype))]
    assert len(bench.cache.entries) == 2


def test_weights_are_never_where_the_launch_before_had_them() -> None:
    bench = Bench()
    bench.seconds("fast")
    replay = bench.stub.weights[-12:]
    assert len(set(replay)) == 12


def test_the_cache_is_emptied_before_every_replay() -> None:
    bench = Bench()
    bench.seconds("fast")
    flushes = [i for i, name in enumerate(bench.stub.runs) if name == cache_flush_kernel().symbol]
    assert len(flushes) == 3
    between = bench.stub.runs[flushes[0] + 1 : flushes[1]]
    assert between == [kernel_of("fast").symbol] * 14


def test_what_the_cache_knows_is_neither_compiled_nor_run_again() -> None:
    bench = Bench()
    first, tactics = bench.seconds("slow", "fast"), [tactic_of("slow", bench.dtype)]
    runs = len(bench.stub.runs)
    timer = bench.timer()
    timer.announce([(bench.node, tactics)])
    assert timer.seconds(bench.node, tactics) == first[:1]
    assert (bench.backend.begun, len(bench.stub.runs)) == ([], runs)


def test_equal_nodes_are_timed_once() -> None:
    bench = Bench()
    tactics = [tactic_of("fast", bench.dtype)]
    timer = bench.timer()
    timer.announce([(bench.node, tactics), (node_of(bench.dtype), tactics)])
    assert bench.backend.begun == ["copy", "copy", "fast"]
    times = [timer.seconds(node, tactics) for node in (bench.node, node_of(bench.dtype))]
    assert times[0] == times[1]
    assert bench.stub.runs.count(cache_flush_kernel().symbol) == 3


def test_times_of_another_gpu_or_driver_are_not_believed() -> None:
    bench = Bench()
    here = bench.lab.where
    assert "Stub 0, driver for CUDA 13.0" in here
    bench.stub.version = 13010
    other = CudaDevice(Driver(bench.stub), 0)
    assert CudaBench(bench.backend, HOPPER, other, sizes={}).where != here


@pytest.mark.parametrize(("hint", "count"), [(1e-6, 3), (1e-5, 2)])
def test_of_launches_that_take_long_fewer_are_timed(hint: float, count: int) -> None:
    bench = Bench()
    tactics = [tactic_of(kind, bench.dtype, hint) for kind in ("slow", "fast", "moving")]
    bench.timer(max_timed_slow=2).announce([(bench.node, tactics)])
    assert len(bench.backend.begun) == 2 + count


def test_each_node_has_its_best_guess_compiled_first_when_time_is_short() -> None:
    bench = Bench()
    hints = {"slow": 3e-6, "fast": 1e-6, "wrong": 2e-6}
    tactics = [tactic_of(kind, bench.dtype, hint) for kind, hint in hints.items()]
    second = node_of(bench.dtype)
    second.op = ops.Sub()
    bench.timer(seconds=60.0).announce([(bench.node, tactics), (second, tactics)])
    assert bench.backend.begun[2:] == ["fast", "fast", "wrong", "wrong", "slow", "slow"]


def test_when_time_is_up_estimates_are_believed_and_nothing_runs() -> None:
    bench = Bench()
    tactics = [tactic_of("fast", bench.dtype, 7e-6)]
    late = bench.timer(seconds=-1.0)
    late.announce([(bench.node, tactics)])
    assert late.seconds(bench.node, tactics) == [7e-6]
    assert (bench.backend.begun, bench.stub.runs) == (["copy", "copy"], [])


def test_copies_are_compiled_first_and_waited_for_however_late_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.timer(seconds=-1.0).announce([(bench.node, [tactic_of("fast", bench.dtype)])])
    waits: list[float | None] = []

    def records(*_: Any, wait_s: float | None = None) -> bytes:
        waits.append(wait_s)
        raise BuildError("enough")

    monkeypatch.setattr(bench.backend, "records", records)
    with pytest.raises(BuildError):
        bench.timer().copy_seconds(1 << 20)
    assert waits == [None]


def test_what_is_not_compiled_in_time_is_passed_over() -> None:
    bench = Bench()
    tactics = [tactic_of(kind, bench.dtype) for kind in ("late", "slow")]
    timer = bench.timer(seconds=60.0)
    timer.announce([(bench.node, tactics)])
    assert timer.seconds(bench.node, tactics) == [math.inf, pytest.approx(2e-5)]
    assert not bench.lab.refused


def test_all_memory_streams_and_graphs_are_given_back() -> None:
    bench = Bench()
    bench.seconds("slow", "wrong", "broken", "fast")
    del bench.lab, bench.backend
    gc.collect()
    assert set(bench.stub.live_kinds()) == {"context"}


# ---- a library's algorithms


@pytest.mark.parametrize("error", [0.1, -5e-5], ids=["wrong", "moving"])
def test_a_librarys_algorithms_are_checked_and_timed_like_kernels(
    error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    use_stub(bench.stub, monkeypatch)
    library = StubCublasLt(bench.stub)
    library.install(monkeypatch)
    family = CublasLtFamily(open_cublaslt(bench.device))
    library.workspaces = (0, 4096, 256)
    library.costs_ms = {0: 0.03, 1: 0.002, 2: 0.001}
    library.wrong = {2: error}
    bench.backend.families = (family,)
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4, 16)))
    w = graph.add_constant(np.linspace(-1, 1, 128, dtype=np.float32).reshape(16, 8), "w")
    node = graph.add(ops.MatMul(), x, w, name="product")
    tactics, _ = bench.backend.candidates(node, HOPPER)
    times = bench.timer().seconds(node, tactics)
    assert times == [pytest.approx(3e-5), pytest.approx(2e-6), math.inf]
    assert "the error is" in str(bench.lab.refused) or "differ between runs" in str(
        bench.lab.refused
    )
    done = library.done
    assert bench.timer().seconds(node, tactics[:2]) == times[:2]
    assert library.done == done
    library.version = 130200  # whose times are its own
    family.loaded_library = open_cublaslt(bench.device)
    others, _ = bench.backend.candidates(node, HOPPER)
    assert bench.timer().seconds(node, others[:2]) == pytest.approx(times[:2])
    assert library.done > done
