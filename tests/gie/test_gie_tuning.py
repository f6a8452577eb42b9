"""What a build does with time and memory: timed candidates, packed weights, limits, iterations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import gie, ops
from smelt.backends.cpu.families import _tiling, conv
from smelt.devices.cpu import RunList
from smelt.engine import Launch, Space
from smelt.interp import interpret
from smelt.tuner import CpuBench
from tests.support.gie import (
    RecordingLogger,
    build,
    candidates_times,
    execute,
    layer_names,
    numbers,
    output_of,
    report,
    small_network,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _fresh_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another has measured."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))


def _count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each run of a list of launches."""
    runs: list[int] = []
    run = RunList.run

    def counted(self: RunList, *args: Any, **kwargs: Any) -> None:
        runs.append(1)
        run(self, *args, **kwargs)

    monkeypatch.setattr(RunList, "run", counted)
    return runs


@pytest.mark.requirement("G-25", "G-1")
def test_candidates_are_run_on_dummy_data_and_the_fastest_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = _count_runs(monkeypatch)
    # Of few channels a slower candidate may save the copy that turns the picture over.
    engine = build(small_network(channels=24))
    times = candidates_times(engine)["conv"]
    measured = [seconds for _, seconds in times if seconds < 1]
    assert len(measured) >= 2
    assert len(runs) >= len(measured) * (4 + 2)  # each is checked four times and timed
    assert [seconds for _, seconds in times] == sorted(seconds for _, seconds in times)
    (node,) = [node for node in report(engine)["nodes"] if node["name"] == "conv"]
    inside = report(engine)["in_network"].get("conv", times)
    assert node["tactic"] in {times[0][0], min(inside, key=lambda timed: timed[1])[0]}


@pytest.mark.requirement("G-25")
def test_slow_candidate_loses_whatever_was_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock decides: with the best candidate slowed down, the second is taken."""
    first, second, *_ = [tactic for tactic, _ in candidates_times(build(small_network()))["conv"]]
    seconds = CpuBench.seconds

    def slowed(self: CpuBench, node: Any, tactics: Any, **options: Any) -> list[float]:
        times = seconds(self, node, tactics, **options)
        return [t + (str(x) == first) for x, t in zip(tactics, times, strict=True)]

    monkeypatch.setattr(CpuBench, "seconds", slowed)
    monkeypatch.setenv("SMELT_CACHE_DIR", "")
    monkeypatch.setenv("HOME", "")
    chosen = report(build(small_network()))["nodes"][0]["tactic"]
    assert chosen != first
    assert second


def _no_time(*_arguments: object, **_options: object) -> float:
    return 0.0


@pytest.mark.requirement("GX-7")
@pytest.mark.parametrize(("minimum", "average"), [(1, 1), (3, 4)])
def test_find_iterations_are_how_often_candidates_run(
    monkeypatch: pytest.MonkeyPatch, minimum: int, average: int
) -> None:
    runs = _count_runs(monkeypatch)
    monkeypatch.setattr(CpuBench, "copy_seconds", _no_time)  # copies are no candidates
    engine = build(small_network(), min_find_iterations=minimum, average_find_iterations=average)
    measured = [s for times in candidates_times(engine).values() for _, s in times if s < 1]
    assert len(runs) == len(measured) * (4 + minimum * average)


@pytest.mark.requirement("GX-7", "G-36")
def test_debug_sync_lets_the_logger_hear_of_each_layer_that_was_timed() -> None:
    loud, plain = RecordingLogger(), RecordingLogger()
    build(small_network(), loud, debug_sync=True)
    build(small_network(), plain)
    timed = [text for text in loud.texts() if text.startswith("conv: the best of ")]
    assert len(timed) == 1
    assert not [text for text in plain.texts() if "best of" in text]
    assert {severity for severity, _ in loud.messages} <= set(list(gie.Severity)[:4])


@pytest.mark.requirement("G-26")
def test_weights_are_packed_at_the_build_as_the_kernel_reads_them() -> None:
    network = small_network()
    engine = build(network)
    header = engine.engine.header
    packed = [weight for weight in header.weights if "convolution1.weight" in weight.name]
    assert packed
    assert all(weight.shape != (8, 4, 3, 3) for weight in packed)  # no longer K x C x R x S
    steps = [step for step in header.plans[0].steps if isinstance(step, Launch)]
    (conv,) = [s for s in steps if engine.engine.layers[s.layer].name == "conv + relu"]
    spaces = [header.plans[0].buffers[view.buffer].space for view in conv.operands]
    assert spaces.count(Space.WEIGHTS) == 2  # filters and bias, straight from the file
    assert not [name for name in layer_names(engine) if "weight" in name]


@pytest.mark.requirement("G-26")
def test_tensors_that_do_not_live_at_once_share_memory() -> None:
    network = gie.InferNetwork("deep")
    x = network.add_input("data", gie.DataType.FLOAT, (16, 32, 32))
    for depth in range(8):
        layer = network.add_convolution(x, 16, (3, 3), numbers(16, 16, 3, 3, seed=depth) / 12)
        layer.set_padding((1, 1))
        x = output_of(layer)
    network.mark_output(x)
    engine = build(network, max_workspace_size=0)  # scratch memory would count too
    each = 16 * 34 * 34 * 4
    assert engine.engine.header.plans[0].arena_bytes < 3.5 * each
    data = numbers(1, 16, 32, 32)
    wanted = interpret(network.graph, {"data": data})[x.name]
    assert np.allclose(execute(engine, {"data": data})[x.name], wanted, atol=1e-3)


# ---- the workspace


def _product() -> smelt.NetworkDefinition:
    """A product of two inputs: its second factor is packed at run time, in the workspace."""
    network = smelt.NetworkDefinition("product", batch="explicit")
    a = network.add_input("a", "float32", (32, 64))
    b = network.add_input("b", "float32", (64, 48))
    made = network.add(ops.MatMul(), a, b, name="product")
    assert not isinstance(made, tuple)
    network.mark_output(made)
    return network


@pytest.mark.requirement("G-39")
def test_candidate_that_needs_more_workspace_than_allowed_is_refused_and_reported() -> None:
    a, b = numbers(32, 64), numbers(64, 48)
    needs: list[int] = []
    for limit in (1 << 20, 64 * 48 * 4 - 1):
        engine = smelt.build(_product(), max_workspace_bytes=limit)
        (plan,) = json.loads(engine.header.report)
        needs.append(plan["workspace_bytes"])
        assert needs[-1] <= limit
        with engine.create_context() as context:
            assert np.allclose(context.run({"a": a, "b": b})["product"], a @ b, atol=1e-3)
        refusals = plan["refusals"].get("product", [])
        assert any("bytes of workspace" in text for text in refusals) == (limit < 1 << 20)
    assert needs[0] >= 64 * 48 * 4


def _by_panels(*_problem: object) -> tuple[str, ...]:
    return ("panels",)


@pytest.mark.requirement("G-39")
def test_memory_of_each_worker_counts_as_workspace_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep filters may be summed in parts, which wait in memory that each worker has."""
    monkeypatch.setattr(conv, "_MIN_MULTI_PASS_PANEL_BYTES", 0)
    monkeypatch.setattr(_tiling, "parallel_splits", _by_panels)
    network = smelt.NetworkDefinition("deep")
    x = network.add_input("data", "float32", (64, 14, 14))
    y = network.add_convolution(x, 64, 3, numbers(64, 64, 3, 3) / 24, stride=2)
    network.mark_output(y)
    data, results = numbers(1, 64, 14, 14), list[Any]()
    for limit in (1 << 20, 0):
        engine = smelt.build(network, max_workspace_bytes=limit, tune="none")
        (plan,) = json.loads(engine.header.report)
        scratch = engine.header.plans[0].scratch_bytes
        assert (scratch > 0) == (limit > 0)
        assert scratch <= plan["workspace_bytes"] <= limit
        refused = any("of its worker threads" in text for text in plan["refusals"].get(y.name, []))
        assert refused == (limit == 0)
        with engine.create_context() as context:
            results.append(context.run({"data": data})[y.name])
    assert np.allclose(results[0], results[1], atol=1e-4)
