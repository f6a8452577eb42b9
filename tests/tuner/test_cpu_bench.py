"""Trials: a candidate is right, and right again, before its time counts."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import ops
from smelt.backends import Aliasing, Tactic
from smelt.backends.cpu import CpuBackend, compile_runtime, host_target
from smelt.devices.cpu import native_runtime
from smelt.tuner import BenchmarkTimer, CpuBench, TimingCache, relative_error, tensor_bytes
from smelt.tuner._cpu_bench import best_mean
from smelt.tuner._isolated_node import TimingRepeats
from smelt.types import override
from tests.support.cpu_families import make_node, random

if TYPE_CHECKING:
    from smelt.backends.cpu import CpuTarget
    from smelt.engine import KernelSpec
    from smelt.ir import Node


class SpoiltBackend(CpuBackend):
    """Generates relu with its text changed."""

    def __init__(self, change: Any = None) -> None:
        super().__init__()
        self.change = change
        self.compiled = 0

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        self.compiled += 1
        text = super().generate(kernel, target)
        return text if self.change is None else self.change(text)


class RenewedBackend(SpoiltBackend):
    """Has other generators, as a later version may."""

    @property
    @override
    def codegen_version(self) -> str:
        return "another"


def wrong(text: str) -> str:
    """Minus the smaller of zero and x, where it was the larger."""
    assert "fcmp olt" in text
    return text.replace("fcmp olt", "fcmp ogt")


def moving(text: str) -> str:
    """Adds to the result what the last run left there: right once, but only once."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        if line.strip().startswith("store float") or line.strip().startswith("store <"):
            kind, rest = line.strip().removeprefix("store ").rsplit(", ptr ", 1)
            element, value = kind.rsplit(" ", 1)
            pointer = rest.split(",")[0]
            lines.append(f"  %old{number} = load {element}, ptr {pointer}, align 1")
            lines.append(f"  %new{number} = fadd {element} {value}, %old{number}")
            lines.append(f"  store {element} %new{number}, ptr {pointer}, align 1")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def bench(backend: CpuBackend, **sizes: int) -> CpuBench:
    target = host_target()
    image = compile_runtime(target)
    runtime = native_runtime(image.code, dict(image.symbols))
    return CpuBench(backend, target, runtime, threads=2, sizes=sizes)


def relu_node() -> Node:
    return make_node(ops.Relu(), [random((3, 40))], frozenset())


def timer(backend: CpuBackend, cache: TimingCache) -> BenchmarkTimer:
    return BenchmarkTimer(bench(backend), cache, max_timed=3, repeats=3)


def kernels(node: Node) -> list[Tactic]:
    found = CpuBackend().candidates(node, host_target())[0]
    return [t for t in found if not t.is_host_step and t.aliasing is Aliasing.NONE]


def test_a_right_kernel_gets_its_time() -> None:
    node = relu_node()
    (seconds,) = timer(SpoiltBackend(), TimingCache()).seconds(node, kernels(node)[:1])
    assert 0 < seconds < 1


@pytest.mark.parametrize(
    ("change", "reason"), [(wrong, "the error is"), (moving, "differ between runs")]
)
def test_a_wrong_or_moving_kernel_never_wins(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = relu_node()
    reference = [t for t in CpuBackend().candidates(node, host_target())[0] if t.is_host_step]
    cache = TimingCache()
    with caplog.at_level(logging.WARNING):
        times = timer(SpoiltBackend(change), cache).seconds(node, [*kernels(node), *reference])
    assert all(math.isinf(t) for t in times[:-1])
    assert math.isfinite(times[-1])
    assert reason in caplog.text
    assert not cache.entries


def test_what_the_cache_knows_is_not_measured_again() -> None:
    node, cache = relu_node(), TimingCache()
    first = timer(SpoiltBackend(), cache).seconds(node, kernels(node))
    backend = SpoiltBackend()
    assert timer(backend, cache).seconds(node, kernels(node)) == first
    assert backend.compiled == 0


def test_what_was_announced_is_compiled_once_and_together() -> None:
    node, backend = relu_node(), SpoiltBackend()
    found = timer(backend, TimingCache())
    found.announce([(node, kernels(node))])
    ahead = backend.compiled
    assert ahead > 0
    found.seconds(node, kernels(node))
    assert backend.compiled == ahead


def test_what_the_cache_knows_is_not_compiled_when_announced() -> None:
    node, cache = relu_node(), TimingCache()
    timer(SpoiltBackend(), cache).seconds(node, kernels(node))
    backend = SpoiltBackend()
    timer(backend, cache).announce([(node, kernels(node))])
    assert backend.compiled == 0


def test_times_of_other_generators_are_not_believed() -> None:
    node, cache = relu_node(), TimingCache()
    timer(SpoiltBackend(), cache).seconds(node, kernels(node))
    backend = RenewedBackend()
    timer(backend, cache).seconds(node, kernels(node))
    assert backend.compiled > 0


def test_copies_are_priced_by_one_that_is_measured_once() -> None:
    cache, backend = TimingCache(), SpoiltBackend()
    price = timer(backend, cache).copy_seconds
    assert 0 < price(1 << 20) < 0.1
    assert price(3 << 20) - price(2 << 20) == pytest.approx(price(2 << 20) - price(1 << 20))
    assert timer(backend, cache).copy_seconds(1 << 20) == price(1 << 20)
    assert backend.compiled == 2


def test_when_time_is_up_estimates_are_believed() -> None:
    node = relu_node()
    backend = SpoiltBackend()
    late = BenchmarkTimer(bench(backend), TimingCache(), max_timed=3, repeats=3, seconds=-1.0)
    late.announce([(node, kernels(node))])
    assert late.seconds(node, kernels(node)) == [t.estimated_seconds for t in kernels(node)]
    assert backend.compiled == 0


def test_of_a_node_whose_tensors_are_beyond_the_limit_estimates_are_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, backend = relu_node(), SpoiltBackend()
    assert tensor_bytes(node, {}) == 2 * 3 * 40 * 4
    limit = SimpleNamespace(most=2 * 3 * 40 * 4 - 1, excess=str)
    monkeypatch.setattr(CpuBench, "trial_limit", limit)
    found = timer(backend, TimingCache())
    assert found.seconds(node, kernels(node)) == [t.estimated_seconds for t in kernels(node)]
    limit.most += 1
    assert found.seconds(node, kernels(node)) != [t.estimated_seconds for t in kernels(node)]


class SlowRuns:
    """Stands for a run list on a clock of its own, on which every tenth run takes longer."""

    def __init__(self, each_s: float) -> None:
        self.each_s, self.now, self.runs, self.asked = each_s, 0.0, 0, [0]

    def run(self) -> None:
        self.runs += 1
        self.now += self.each_s * (10 if self.runs % 10 == 0 else 1)

    def perf_counter(self) -> float:
        self.asked.append(self.runs)
        return self.now

    @property
    def longest_sample(self) -> int:
        return max(later - before for before, later in pairwise(self.asked))


@pytest.mark.parametrize(
    ("each_s", "runs_per_mean", "wanted"), [(4e-6, 1, 13), (1e-3, 1, 1), (4e-6, 40, 40)]
)
def test_a_sample_of_a_tiny_kernel_is_a_mean_of_many_runs(
    each_s: float, runs_per_mean: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: Any = SlowRuns(each_s)
    monkeypatch.setattr("smelt.tuner._cpu_bench.time", runs)
    seconds = best_mean(runs, TimingRepeats(5, runs_per_mean, seconds=1.0, min_sample_seconds=5e-5))
    assert runs.longest_sample == wanted
    assert each_s <= seconds < 2 * each_s


def test_symbolic_extents_are_tried_at_the_sizes_to_tune_for() -> None:
    node = make_node(ops.Relu(), [random((3, 40))], frozenset(), {(0, 0): "batch"})
    lab = bench(CpuBackend(), batch=5)
    seconds = BenchmarkTimer(lab, TimingCache(), max_timed=3, repeats=3).seconds(
        node, kernels(node)
    )
    assert all(0 < s < 1 for s in seconds)


def test_errors_are_relative_to_the_largest_finite_magnitude() -> None:
    wanted = np.array([100.0, -1.0, np.inf, np.nan], np.float32)
    assert relative_error(wanted.copy(), wanted) == 0
    assert relative_error(wanted + np.float32(1), wanted) == pytest.approx(0.01)
    assert math.isinf(relative_error(np.zeros(4, np.float32), wanted))
    assert math.isinf(relative_error(wanted[:2], wanted))
    assert math.isinf(relative_error(np.full(4, np.nan, np.float32), np.ones(4, np.float32)))
    assert math.isinf(relative_error(np.array([1, 2]), np.array([1, 3])))
    assert relative_error(np.zeros(0), np.zeros(0)) == 0
