# ruff: noqa: N802  (functions have the driver's own names)
"""Whole plans on a GPU by turns, here the driver's stub with a clock."""

from __future__ import annotations

import gc
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import ops
from smelt.devices.cuda import CublasError, CudaDevice, CudaKernel, Driver, KernelLoader
from smelt.engine import Launch
from smelt.errors import EngineMismatchError
from smelt.ir import Graph
from smelt.tuner import (
    CudaPlanFixture,
    InNetworkEffort,
    InNetworkTrial,
    InNetworkTuner,
    TacticChoice,
    TimingCache,
    _cuda_plan_fixture,
)
from smelt.types import DType, TensorType, override
from tests.support.cuda_stub_candidates import (
    COSTS_MS,
    HOPPER,
    ClockedStub,
    StubBackend,
    elements,
    kernel_of,
    tactic_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import SimpleNamespace

    from numpy.typing import NDArray

    from smelt.backends import Tactic
    from smelt.backends._plan_passes import UnallocatedPlan
    from smelt.devices.cuda import LoadedCall, LoadedKernel
    from smelt.errors import SmeltError
    from smelt.ir import Node
    from tests.support.cuda_driver_stub import CUresult

_DTYPE = DType.FLOAT32


class Stage:
    """A chain of two nodes on the stub."""

    def __init__(self, stub: ClockedStub | None = None) -> None:
        self.stub = stub or ClockedStub()
        self.device = CudaDevice(Driver(self.stub), 0)
        self.backend = StubBackend(self.stub, _DTYPE)
        self.graph = Graph("chain")
        x = self.graph.add_input("x", TensorType(_DTYPE, (3, 4)))
        for number in range(2):
            weights = np.full(4, number + 1, _DTYPE.numpy)
            w = self.graph.add_constant(weights, f"w{number}")
            x = self.graph.add(ops.Add(), x, w, name=f"add{number}").output
        self.graph.outputs.append(x)
        self.rehearsal = InNetworkTrial(
            self.graph, self.open_fixture, sizes={}, times_whole_plan=True
        )

    def open_fixture(self, assignments: Sequence[dict[Node, Tactic]]) -> CudaPlanFixture:
        return CudaPlanFixture(
            [self.graph], assignments, self.backend, HOPPER, self.device, symbols=(), sizes={}
        )

    def assignment(self, *kinds: str) -> dict[Node, Tactic]:
        nodes = zip(self.graph.nodes, kinds, strict=True)
        return {node: tactic_of(kind, _DTYPE) for node, kind in nodes}

    def chosen(
        self,
        alone: dict[str, float],
        *,
        rehearsal: InNetworkTrial | Overlapping | Lucky | None = None,
        cache: TimingCache | None = None,
    ) -> TacticChoice:
        """What a trial makes of slow tactics, where kinds take so many seconds by themselves."""
        choice = TacticChoice(self.assignment("slow", "slow"))
        for node in self.graph.nodes:
            choice.candidate_times[node] = [(tactic_of(k, _DTYPE), s) for k, s in alone.items()]
        InNetworkTuner(
            self.graph,
            choice,
            rehearsal or self.rehearsal,
            self.backend,
            cache or TimingCache(),
            effort=InNetworkEffort(min_plan_seconds=0.0),
            where="the stub",
            sizes={},
        ).run()
        return choice


def test_nodes_of_the_first_plan_are_stamped_and_wholes_are_timed_without_stamps() -> None:
    stage = Stage()
    assignments = [stage.assignment("slow", "fast"), stage.assignment("fast", "fast")]
    times = stage.rehearsal.milliseconds(assignments, runs=3, max_seconds=10.0)
    assert [t.shape for t in times] == [(3, 3), (3, 3)]
    assert times[0][0] == pytest.approx([0.02, 0.03, 0.03])
    assert times[1][0] == pytest.approx([0.02, 0.03, 0.02])


def test_a_plan_whose_code_cannot_be_had_takes_forever_and_harms_no_other() -> None:
    stage = Stage()
    assignments = [stage.assignment("slow", "fast"), stage.assignment("broken", "fast")]
    right, broken = stage.rehearsal.milliseconds(assignments, runs=2, max_seconds=10.0)
    assert right[0] == pytest.approx([0.02, 0.03, 0.03])
    assert np.isinf(broken).all()


@pytest.mark.parametrize(
    "error", [EngineMismatchError("not here"), CublasError("cublasLtCreate", 3)], ids=["no", "full"]
)
def test_a_plan_that_a_library_refuses_takes_forever_and_harms_no_other(
    error: SmeltError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Loader(KernelLoader):
        @override
        def load(
            self, code: bytes | memoryview, offset: int = 0, architecture_index: int = 0
        ) -> LoadedKernel | LoadedCall:
            if stage.stub.costs_ms[CudaKernel.from_bytes(code, offset).entry] == refused_ms:
                raise error
            return super().load(code, offset, architecture_index)

    refused_ms = 7.0
    monkeypatch.setitem(COSTS_MS, "refused", refused_ms)
    monkeypatch.setattr(_cuda_plan_fixture, "KernelLoader", Loader)
    stage = Stage()
    assignments = [stage.assignment("slow", "fast"), stage.assignment("refused", "fast")]
    right, refused = stage.rehearsal.milliseconds(assignments, runs=2, max_seconds=10.0)
    assert right[0] == pytest.approx([0.02, 0.03, 0.03])
    assert np.isinf(refused).all()
    assert f"is rejected: {error}" in caplog.text


def test_what_is_faster_in_the_network_wins_there() -> None:
    stage = Stage()
    # What was measured alone has the order wrong, and one candidate does not even compile.
    choice = stage.chosen({"slow": 1e-5, "broken": 1.1e-5, "fast": 1.2e-5})
    assert choice.tactics == stage.assignment("fast", "fast")


def test_nothing_is_left_on_the_gpu() -> None:
    stage = Stage()
    stage.rehearsal.milliseconds([stage.assignment("slow", "fast")], runs=1, max_seconds=10.0)
    gc.collect()
    assert set(stage.stub.live_kinds()) == {"context"}


class Overlapping:
    """A stage where the first node gains by starting early and the second loses."""

    times_whole_plan, prepare_seconds = True, 0.0

    def __init__(self, stage: Stage) -> None:
        self.nodes = stage.graph.nodes

    def milliseconds(
        self, assignments: Sequence[dict[Node, Tactic]], *, runs: int, max_seconds: float
    ) -> list[NDArray[np.float64]]:
        assert max_seconds > 0
        found: list[NDArray[np.float64]] = []
        for assignment in assignments:
            early = [assignment[node].uses_pdl for node in self.nodes]
            whole = 2.0 - 0.3 * early[0] + 0.5 * early[1]
            found.append(np.tile([1.0, 2.0, whole], (runs, 1)))
        return found


def test_each_node_starts_early_only_where_the_network_gains() -> None:
    stage = Stage()
    stage.graph.nodes[1].op = ops.Sub()  # equal nodes have equal tactics
    choice = stage.chosen({"slow": 1e-3}, rehearsal=Overlapping(stage))
    assert [choice.tactics[n].uses_pdl for n in stage.graph.nodes] == [True, False]
    assert str(choice.tactics[stage.graph.nodes[0]]).endswith(" pdl")


class Racing(ClockedStub):
    """A driver on which a launch that starts early now and then reads too soon."""

    def __init__(self, *, each: int) -> None:
        super().__init__()
        self.each, self.early = each, 0

    @override
    def cuLaunchKernelEx(
        self, config: SimpleNamespace, function: str, arguments: int, extra: int
    ) -> tuple[CUresult]:
        done = super().cuLaunchKernelEx(config, function, arguments, extra)
        if config.numAttrs and function in self.costs_ms:
            words = self._words(function, arguments)
            self._do(config.hStream, lambda: self.spoil(words[2]))
        return done

    def spoil(self, place: int) -> None:
        self.early += 1
        if self.early % self.each == 0:
            elements(place, 12, _DTYPE.numpy)[7] += 1


def early(assignment: dict[Node, Tactic]) -> dict[Node, Tactic]:
    return {key: replace(tactic, uses_pdl=True) for key, tactic in assignment.items()}


@pytest.mark.parametrize(("each", "is_rejected"), [(7, True), (10**9, False)])
def test_a_plan_that_computes_something_else_even_once_is_out(
    each: int, is_rejected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(Racing(each=each))
    calm = stage.assignment("slow", "fast")
    with caplog.at_level(logging.WARNING):
        times = stage.rehearsal.milliseconds([calm, early(calm)], runs=2, max_seconds=10.0)
    assert np.isfinite(times[0]).all()
    assert np.isinf(times[1]).all() == is_rejected
    assert ("chain: plan 2 of 2 is rejected: the results" in caplog.text) == is_rejected


@pytest.mark.parametrize(("kind", "is_rejected"), [("fast", False), ("wrong", True)])
def test_a_plan_that_goes_backwards_must_compute_what_it_does_forwards(
    kind: str, is_rejected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()

    def reverse_tiles(plan: UnallocatedPlan) -> None:
        for number, (step, tactic) in enumerate(zip(plan.steps, plan.tactics, strict=True)):
            if isinstance(step, Launch) and tactic is not None and tactic.reversed_tile_order:
                plan.steps[number] = replace(step, kernel=kernel_of(kind))

    monkeypatch.setattr(stage.backend, "plan_passes", (reverse_tiles,))
    forwards = stage.assignment("fast", "fast")
    reversed_tile_order = {
        key: replace(tactic, reversed_tile_order=True) for key, tactic in forwards.items()
    }
    times = stage.rehearsal.milliseconds([forwards, reversed_tile_order], runs=1, max_seconds=10.0)
    assert np.isfinite(times[0]).all()
    assert np.isinf(times[1]).all() == is_rejected


class Watching(ClockedStub):
    """A driver that keeps what candidates' launches read, and what was where they wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bytes, bytes]] = []

    @override
    def _launch(self, function: str, words: list[int], blocks: int) -> None:
        if function in self.costs_ms:
            read, written = (elements(words[k], 12, _DTYPE.numpy) for k in (0, 2))
            self.seen.append((read.tobytes(), written.tobytes()))
        super()._launch(function, words, blocks)


def test_plans_are_compared_on_fresh_inputs_in_memory_that_holds_nothing_of_them() -> None:
    stage = Stage(stub := Watching())
    stage.rehearsal.milliseconds([stage.assignment("slow", "fast")], runs=1, max_seconds=10.0)
    compared = stub.seen[2 : 2 + 3 * 4 * 2]  # behind the run that is stamped
    assert len({read for read, _ in compared[::2]}) == 3
    assert {written for _, written in compared} == {b"\xff" * 48}


class Lucky:
    """A stage where what starts early goes wrong, though not the first time."""

    times_whole_plan, prepare_seconds = True, 0.0

    def __init__(self, stage: Stage) -> None:
        self.nodes, self.calls = stage.graph.nodes, 0

    def milliseconds(
        self, assignments: Sequence[dict[Node, Tactic]], *, runs: int, max_seconds: float
    ) -> list[NDArray[np.float64]]:
        assert max_seconds > 0
        self.calls += 1
        found: list[NDArray[np.float64]] = []
        for assignment in assignments:
            is_early = any(assignment[node].uses_pdl for node in self.nodes)
            whole = (math.inf if self.calls > 1 else 1.0) if is_early else 2.0
            found.append(np.full((runs, 3), whole))
        return found


def test_a_plan_that_goes_wrong_after_it_was_chosen_is_given_up_for_good() -> None:
    stage, cache = Stage(), TimingCache()
    for _ in range(2):  # the next build finds the first one's times in the cache
        choice = stage.chosen({"slow": 1e-3}, rehearsal=Lucky(stage), cache=cache)
        assert choice.tactics == stage.assignment("slow", "slow")
