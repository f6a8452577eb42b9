"""Estimates of launches: sound in themselves, and as good as they were on times that were kept."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.backends.cuda import CudaBackend, CudaTarget, target_named
from smelt.backends.cuda._cost_model import LaunchWorkload, gpu_spec_of, seconds_of
from smelt.backends.cuda._product_costs import register_operand_seconds, tiled_seconds
from smelt.backends.cuda._tile_configs import GemmShape, TileConfig
from smelt.backends.cuda.families._tile_candidates import tiles_for
from smelt.ir import Graph
from smelt.ops import Attention, Conv
from smelt.types import DType, TensorType
from tests.support.precision import candidates_in

HOPPER = CudaTarget(90)
KEPT = Path(__file__).with_name("products_h200.json")
"""Products of four networks at batches 1, 32 and 128 on an H200, in 16 bits: for each the best
tiles and others (rows, columns, steps, warps, steps held, pieces, early) with microseconds."""
PLAIN = LaunchWorkload(
    programs=132,
    num_warps=4,
    registers=64,
    shared_bytes=40_000,
    steps=8,
    num_stages=3,
    step_seconds=1e-7,
    step_overhead_seconds=1e-8,
    dependency_seconds=5e-8,
    step_bytes=16_000,
    epilogue_bytes=8_000,
    accumulators=32,
    l2_read_bytes=1.8e7,
    source_bytes=1e6,
    moved_bytes=3e6,
)
WORKS = st.builds(
    LaunchWorkload,
    programs=st.integers(0, 1 << 24),
    num_warps=st.sampled_from([1, 2, 4, 8]),
    registers=st.floats(0, 2000),
    shared_bytes=st.integers(0, 1 << 20),
    steps=st.integers(1, 1 << 16),
    num_stages=st.integers(1, 8),
    step_seconds=st.floats(0, 1e-3),
    step_overhead_seconds=st.floats(0, 1e-5),
    dependency_seconds=st.floats(0, 1e-5),
    step_bytes=st.floats(0, 1e6),
    epilogue_bytes=st.floats(0, 1e6),
    accumulators=st.floats(0, 1024),
    l2_read_bytes=st.floats(0, 1e13),
    source_bytes=st.floats(0, 1e12),
    moved_bytes=st.floats(0, 1e12),
    reuse=st.floats(0.1, 4),
    contended_bytes=st.floats(0, 1e12),
)
GROWING = (
    "programs", "steps", "step_seconds", "step_overhead_seconds", "dependency_seconds",
    "step_bytes",
    "epilogue_bytes", "accumulators", "l2_read_bytes", "moved_bytes", "contended_bytes",
    "registers",
)  # fmt: skip


# ---- launches


@given(WORKS)
def test_every_launch_takes_some_time_on_every_architecture(work: LaunchWorkload) -> None:
    for capability in (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121):
        seconds = seconds_of(work, gpu_spec_of(target_named(f"sm_{capability}")))
        assert 1e-7 < seconds < math.inf


@given(WORKS, st.sampled_from(GROWING), st.integers(2, 5))
def test_no_launch_gets_shorter_by_more_work(work: LaunchWorkload, name: str, times: int) -> None:
    gpu = gpu_spec_of(HOPPER)
    more = replace(work, **{name: getattr(work, name) * times})
    assert seconds_of(more, gpu) >= seconds_of(work, gpu) * (1 - 1e-9)


def test_a_wave_more_costs_more_and_places_that_are_free_cost_little() -> None:
    gpu = gpu_spec_of(HOPPER)
    programs_per_sm = 5  # of programs with so much shared memory

    def seconds(programs: int) -> float:
        return seconds_of(replace(PLAIN, programs=programs), gpu)

    full, more = seconds(132 * programs_per_sm), seconds(132 * programs_per_sm + 1)
    assert more > full + 5e-7
    assert seconds(132 * (programs_per_sm + 1)) == more
    assert seconds(1) == seconds(132)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({}, {"registers": 300}),
        ({}, {"shared_bytes": 120_000, "programs": 1320}),
        ({"num_stages": 4}, {"num_stages": 2}),
        ({}, {"contended_bytes": 1e8}),
        ({}, {"source_bytes": 6e7, "num_stages": 1}),
    ],
)
def test_spills_crowds_and_waiting_cost_time(better: Any, worse: Any) -> None:
    gpu = gpu_spec_of(HOPPER)
    slow = replace(PLAIN, **worse)
    fast = replace(PLAIN, **{"programs": slow.programs, **better})
    assert seconds_of(fast, gpu) < seconds_of(slow, gpu)


def test_a_larger_gpu_and_a_newer_one_are_faster() -> None:
    shape = GemmShape(1, 25088, 1024, 2304, DType.FLOAT16, run=256, image=6_422_528, windows=True)
    choice = TileConfig((128, 128, 64), 8, 3, "ieee")
    times = [
        tiled_seconds(shape, choice, gpu_spec_of(target))
        for target in (
            target_named("sm_75"), target_named("sm_80"), replace(HOPPER, multiprocessors=66),
            HOPPER, target_named("sm_100"),
        )
    ]  # fmt: skip
    assert times == sorted(times, reverse=True)


# ---- products


@settings(max_examples=20)
@given(
    st.integers(1, 1 << 20), st.integers(1, 4096), st.integers(1, 8192),
    st.sampled_from([DType.FLOAT16, DType.FLOAT32]), st.sampled_from([75, 80, 90, 120]),
)  # fmt: skip
def test_tiles_come_best_first_with_times(
    rows: int, columns: int, depth: int, dtype: DType, capability: int
) -> None:
    shape = GemmShape(1, rows, columns, depth, dtype, run=8)
    seconds = [s for _, s in tiles_for(shape, target_named(f"sm_{capability}"))]
    assert seconds
    assert seconds == sorted(seconds)
    assert all(1e-7 < s < math.inf for s in seconds)


@pytest.mark.parametrize(("batch", "measured_us"), [(1, 4.3), (32, 37.9), (128, 146)])
def test_a_stem_takes_about_as_long_as_it_did(batch: int, measured_us: float) -> None:
    rows, image = batch * 112 * 112, batch * 4 * 224 * 224
    shape = GemmShape(1, rows, 64, 224, DType.FLOAT16, image=image)
    seconds = register_operand_seconds(shape, 224, -(-rows // 64), HOPPER, has_full_occupancy=True)
    assert seconds * 1e6 == pytest.approx(measured_us, rel=0.25)


def test_few_long_sums_are_cut_in_pieces_and_many_are_not() -> None:
    def best(rows: int) -> TileConfig:
        shape = GemmShape(
            1, rows, 512, 4608, DType.FLOAT16, run=512, image=rows * 512, windows=True
        )
        return next(choice for choice, _ in tiles_for(shape, HOPPER))

    assert best(49).split_k > 1
    assert best(6272).split_k == 1
    assert math.prod(best(6272).tile[:2]) > math.prod(best(49).tile[:2])


def test_sums_in_pieces_do_not_crowd_out_all_others() -> None:
    shape = GemmShape(1, 1568, 512, 4608, DType.FLOAT16, run=512, image=802_816, windows=True)
    most_promising = [choice for choice, _ in tiles_for(shape, HOPPER)][:8]
    fastest = TileConfig((64, 128, 128), 4, 4, "ieee")  # of all that were measured
    assert fastest in most_promising
    assert any(choice.split_k > 1 for choice in most_promising)


def test_a_depthwise_convolution_has_small_programs_first() -> None:
    graph = Graph("depthwise")
    x = graph.add_input("x", TensorType(DType.FLOAT16, (1, 384, 14, 14)))
    w = graph.add_constant(np.zeros((384, 1, 3, 3), np.float16), "w")
    node = graph.add(Conv((3, 3), pads=(1, 1, 1, 1), group=384), x, w, name="node")
    tactics, _ = candidates_in(DType.FLOAT16, CudaBackend(jobs=1), node, HOPPER)
    tiles = [
        dict(t.parameters)["tile"]
        for t in sorted(tactics, key=lambda t: t.estimated_seconds)
        if t.family == "depthwise"
    ]
    assert tiles[0] == (16, 64, 1)
    assert tiles[-1] in {(64, 64, 1), (128, 32, 1)}


def test_long_attention_has_the_blocks_first_that_were_fastest() -> None:
    graph = Graph("attention")
    operands = [graph.add_input(n, TensorType(DType.FLOAT16, (8, 1024, 768))) for n in "qkv"]
    node = graph.add(Attention(0.125, 12), *operands, name="node")
    tactics, _ = candidates_in(DType.FLOAT16, CudaBackend(jobs=1), node, HOPPER)
    best = min((t for t in tactics if t.family == "attention"), key=lambda t: t.estimated_seconds)
    assert dict(best.parameters)["block"] == (64, 128)


# ---- against the clock


@dataclass(frozen=True, slots=True)
class Kept:
    """A product that was measured."""

    shape: GemmShape
    times: list[tuple[TileConfig, float]]

    def regret(self, count: int) -> float:
        """The best time of so many, the most promising, beside the best of all."""
        order = sorted(
            self.times, key=lambda pair: tiled_seconds(self.shape, pair[0], gpu_spec_of(HOPPER))
        )
        return min(us for _, us in order[:count]) / min(us for _, us in self.times)

    def correlation(self) -> float:
        """Of ranks."""
        guesses = [
            tiled_seconds(self.shape, choice, gpu_spec_of(HOPPER)) for choice, _ in self.times
        ]
        a, b = (np.argsort(np.argsort(v)) for v in (guesses, [us for _, us in self.times]))
        return float(np.corrcoef(a, b)[0, 1])


def _kept() -> list[Kept]:
    found: list[Kept] = []
    for row in json.loads(KEPT.read_text(encoding="utf-8")):
        times = [
            (
                TileConfig(
                    (bm, bn, bk), num_warps, num_stages, "ieee", bool(prefetches_epilogue), split_k
                ),
                us,
            )
            for bm, bn, bk, num_warps, num_stages, split_k, prefetches_epilogue, us in row.pop(
                "times"
            )
        ]
        del row["product"]
        found.append(Kept(GemmShape(matrices=1, dtype=DType.FLOAT16, **row), times))
    return found


def test_the_choice_among_measured_tiles_is_as_good_as_it_was() -> None:
    kept = _kept()
    regrets = {count: [k.regret(count) for k in kept] for count in (1, 4, 8)}
    means = {count: round(float(np.mean(values)), 3) for count, values in regrets.items()}
    assert means == {1: 1.055, 4: 1.025, 8: 1.002}
    assert max(regrets[1]) < 1.5
    assert round(float(np.mean([k.correlation() for k in kept])), 2) == 0.7
