"""Weights are asked for over the borders of launches, and nothing else about a plan changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import smelt
from smelt.backends._plan_passes import UnallocatedPlan
from smelt.backends.cpu.families.weight_prefetch import prefetch_weights
from smelt.engine import Launch, Space
from smelt.interp import interpret


def _network(channels: int) -> smelt.NetworkDefinition:
    """Convolutions whose weights are many for their pixels, between others whose are few."""
    network = smelt.NetworkDefinition("stream")
    rng = np.random.default_rng(0)
    x = network.add_input("x", "float32", (1, channels, 14, 14), batch="explicit")
    for _ in range(2):
        for size in (1, 3):
            weights = rng.standard_normal((channels, channels, size, size), np.float32)
            weights /= channels
            x = network.add_convolution(x, channels, size, weights, padding=size // 2)
    network.mark_output(x)
    return network


@pytest.fixture(scope="module")
def engine() -> smelt.Engine:
    return smelt.build(_network(256), tune="none")


def _shares(engine: smelt.Engine) -> list[tuple[int, int]]:
    """The stretches of weights that are asked for, first to last launch."""
    plan = engine.header.plans[0]
    found: list[tuple[int, int]] = []
    for step in plan.steps:
        if isinstance(step, Launch) and dict(step.kernel.parameters).get("prefetch_ahead"):
            buffer = plan.buffers[step.operands[-1].buffer]
            assert buffer.space is Space.WEIGHTS
            found.append((buffer.start, buffer.start + buffer.size_bytes))
    return found


def test_launches_ask_for_one_unbroken_stretch_of_weights(engine: smelt.Engine) -> None:
    shares = _shares(engine)
    assert len(shares) >= 2
    assert all(start < stop for start, stop in shares)
    pairs = itertools.pairwise(shares)
    assert all(stop == start for (_, stop), (start, _) in pairs if stop >= start)


def test_results_stay_the_same_with_any_number_of_threads(engine: smelt.Engine) -> None:
    x = np.random.default_rng(1).standard_normal((1, 256, 14, 14)).astype(np.float32)
    (wanted,) = interpret(_network(256).graph, {"x": x}).values()
    made: list[np.ndarray] = []
    for threads in (1, 2, 3):
        with engine.create_context(threads=threads) as context:
            (result,) = context.run({"x": x}).values()
            made.append(np.asarray(result))
    assert all(np.array_equal(made[0], other) for other in made[1:])
    assert np.abs(made[0] - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_networks_whose_weights_stay_in_the_caches_are_left_as_they_are() -> None:
    with smelt.build(_network(64), tune="none") as small:
        plan = small.header.plans[0]
        assert not _shares(small)
        unallocated = UnallocatedPlan({}, list(plan.steps), buffers=list(plan.buffers))
        prefetch_weights(unallocated)
        assert (tuple(unallocated.steps), tuple(unallocated.buffers)) == (plan.steps, plan.buffers)
