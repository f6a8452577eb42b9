"""Candidates in whole plans: what counts is how long the network takes, neighbours and all."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import ops
from smelt.backends.cpu import CpuBackend, host_target
from smelt.ir import Graph
from smelt.tuner import (
    Candidates,
    CostModelTimer,
    InNetworkEffort,
    InNetworkTuner,
    TacticChoice,
    TimingCache,
    choose,
)
from smelt.tuner._in_network_trial import without_outliers
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Tactic
    from smelt.ir import Node
    from smelt.tuner._in_network_trial import Assignment

    Cost = Callable[[Assignment, int], float | None]


class FakeStage:
    """Plans whose nodes take the milliseconds that ``cost`` says, of a cast and a position.

    Where it says nothing they take 1 ms with the tactics that were chosen, 1.1 ms with others.
    """

    def __init__(
        self, graph: Graph, choice: TacticChoice, cost: Cost = lambda _cast, _i: None
    ) -> None:
        self.graph, self.held, self.special = graph, dict(choice.tactics), cost
        self.played: list[list[Assignment]] = []
        self.times_whole_plan, self.prepare_seconds = False, 0.0

    def cost(self, assignment: Assignment, position: int) -> float:
        found = self.special(assignment, position)
        node = self.graph.nodes[position]
        return (1.0 if assignment[node] == self.held[node] else 1.1) if found is None else found

    def milliseconds(
        self, assignments: Sequence[Assignment], *, runs: int, max_seconds: float
    ) -> list[NDArray[np.float64]]:
        assert max_seconds > 0
        self.played.append(list(assignments))
        count = len(self.graph.nodes)
        each = [
            np.cumsum([self.cost(assignment, i) for i in range(count)])
            for assignment in assignments
        ]
        return [np.tile(np.append(ends, ends[-1]), (runs, 1)) for ends in each]


def network(count: int, *, alike: bool = False) -> Graph:
    """A chain of 3x3 convolutions, all different unless ``alike``."""
    graph = Graph()
    value = graph.add_input("x", TensorType(DType.FLOAT32, (1, 32, 14, 14)))
    filters = 32
    for number in range(count):
        channels, filters = filters, 32 if alike else 32 + 16 * number
        weights = graph.add_constant(np.ones((filters, channels, 3, 3), np.float32), f"w{number}")
        op = ops.Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        value = graph.add(op, value, weights, name=f"conv{number}").output
    graph.outputs = [value]
    return graph


def chosen_alone(graph: Graph) -> TacticChoice:
    """The choice by estimates."""
    backend, target = CpuBackend(jobs=1), host_target()
    found = {n: backend.candidates(n, target) for n in graph.nodes}
    candidates = {k: Candidates(tuple(t), tuple(r)) for k, (t, r) in found.items()}
    return choose(graph, candidates, CostModelTimer(), {})


def trial(
    choice: TacticChoice,
    plan_timer: FakeStage,
    cache: TimingCache | None = None,
    *,
    deadline: float = math.inf,
    min_plan_seconds: float = 0.0,
    short_plan_seconds: float = 0.0,
    change_subsets: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> InNetworkTuner:
    return InNetworkTuner(
        plan_timer.graph,
        choice,
        plan_timer,
        CpuBackend(jobs=1),
        TimingCache() if cache is None else cache,
        effort=InNetworkEffort(
            runs=3,
            extra_candidates=4,
            max_slowdown=1e3,
            min_plan_seconds=min_plan_seconds,
            short_plan_seconds=short_plan_seconds,
            change_subsets=change_subsets,
        ),
        where="here",
        sizes={},
        deadline=deadline,
        progress=progress,
    )


def one_other(choice: TacticChoice, node: Node) -> Tactic:
    """The best tactic alone that was not chosen."""
    return next(t for t, _ in choice.candidate_times[node] if t != choice.tactics[node])


def one_is_fast(node: Node, tactic: Tactic) -> Cost:
    """Half the time for the node at position 3, which is the one given, with that tactic."""
    return lambda assignment, position: (
        0.5 if position == 3 and assignment[node] == tactic else None
    )


def test_what_is_faster_in_the_network_wins_though_it_was_not_alone() -> None:
    graph = network(6)
    choice = chosen_alone(graph)
    better = one_other(choice, graph.nodes[3])
    before = dict(choice.tactics)
    plan_timer = FakeStage(graph, choice, one_is_fast(graph.nodes[3], better))
    told_rounds: list[tuple[int, int]] = []
    trial(choice, plan_timer, progress=lambda done, total: told_rounds.append((done, total))).run()
    assert told_rounds == [(0, 2), (1, 2), (2, 2)]
    assert choice.tactics == {**before, graph.nodes[3]: better}
    sorted_times = dict(choice.in_network_times["conv3"])
    assert sorted_times[str(better)] == pytest.approx(0.5e-3)
    assert sorted_times[str(before[graph.nodes[3]])] == pytest.approx(1e-3)


@pytest.mark.parametrize("short_plan_seconds", [0.0, 1e3])
def test_brief_plans_are_gone_through_again_where_one_choice_makes_another_pay(
    short_plan_seconds: float,
) -> None:
    graph = network(8)
    choice = chosen_alone(graph)
    before = dict(choice.tactics)
    first, then = (graph.nodes[place] for place in (0, 7))
    others = {node: one_other(choice, node) for node in (first, then)}

    def special(assignment: Assignment, position: int) -> float | None:
        is_first = assignment[first] == others[first]
        if position == 7 and is_first and assignment[then] == others[then]:
            return 0.5
        return 0.5 if position == 0 and is_first else None

    trial(choice, FakeStage(graph, choice, special), short_plan_seconds=short_plan_seconds).run()
    found = dict(others) if short_plan_seconds else {first: others[first]}
    assert choice.tactics == {**before, **found}


def test_what_slows_its_neighbours_more_than_it_gains_loses() -> None:
    graph = network(6)
    choice = chosen_alone(graph)
    greedy, before = one_other(choice, graph.nodes[3]), dict(choice.tactics)

    def special(assignment: Assignment, position: int) -> float | None:
        if assignment[graph.nodes[3]] != greedy:
            return None
        return {3: 0.5, 4: 1.7}.get(position)

    trial(choice, FakeStage(graph, choice, special)).run()
    assert choice.tactics == before
    assert dict(choice.in_network_times["conv3"])[str(greedy)] == pytest.approx(1.2e-3)


def test_of_equal_times_the_one_that_goes_through_less_memory_wins() -> None:
    graph = network(1)
    choice = chosen_alone(graph)
    node = graph.nodes[0]
    assert {t.family for t, _ in choice.candidate_times[node]} >= {"conv", "winograd"}
    transformed = next(t for t, _ in choice.candidate_times[node] if t.family == "winograd")
    choice.tactics[node] = transformed
    trial(choice, FakeStage(graph, choice, lambda _cast, _i: 1.0)).run()
    assert choice.tactics[node].family == "conv"


def test_what_tries_something_in_one_plan_is_not_near_another_that_does() -> None:
    graph = network(10)
    choice = chosen_alone(graph)
    plan_timer = FakeStage(graph, choice, lambda _cast, _i: 1.0)
    trial(choice, plan_timer).run()
    (held, *trial_plans), *_ = plan_timer.played
    assert len(trial_plans) < sum(len(t) - 1 for t in choice.in_network_times.values())
    for assignment in trial_plans:
        changed = [i for i, n in enumerate(graph.nodes) if assignment[n] != held[n]]
        assert changed
        assert all(b - a > 3 for a, b in pairwise(changed))


def test_nodes_that_compute_alike_play_together_and_end_alike() -> None:
    graph = network(6, alike=True)
    choice = chosen_alone(graph)
    better = one_other(choice, graph.nodes[0])
    keys = list(graph.nodes)
    plan_timer = FakeStage(graph, choice, lambda c, i: 0.5 if c[keys[i]] == better else None)
    trial(choice, plan_timer).run()
    assert set(choice.tactics.values()) == {better}
    assert all(len(set(assignment.values())) == 1 for assignment in plan_timer.played[0])


def test_a_plan_that_is_slower_as_a_whole_is_not_taken() -> None:
    graph = network(12)
    choice = chosen_alone(graph)
    before = dict(choice.tactics)

    def special(assignment: Assignment, position: int) -> float | None:
        changed = sum(assignment[k] != t for k, t in before.items())
        gain = 0.1 if assignment[graph.nodes[position]] != before[graph.nodes[position]] else 0
        return 1.0 - gain + (5.0 if changed == len(before) else 0.0)

    plan_timer = FakeStage(graph, choice, special)
    trial(choice, plan_timer).run()
    assert len(plan_timer.played[-1]) == 2
    assert choice.tactics == before


def test_of_changes_that_do_not_go_together_those_that_gain_most_are_taken() -> None:
    graph = network(12)
    choice = chosen_alone(graph)
    before = dict(choice.tactics)

    def special(assignment: Assignment, position: int) -> float | None:
        changed = {i for i, node in enumerate(graph.nodes) if assignment[node] != before[node]}
        crowd = 5.0 if len(changed) > 3 and position == 0 else 0.0
        return 1.0 + crowd - (0.5 if position in {2, 6, 10} else 0.1) * (position in changed)

    plan_timer = FakeStage(graph, choice, special)
    trial(choice, plan_timer, change_subsets=4).run()
    changed = {i for i, n in enumerate(graph.nodes) if choice.tactics[n] != before[n]}
    assert changed == {2, 6, 10}
    assert len(plan_timer.played[-1]) == 5  # with 12 changes, 6, 3 and 1, and as it was


def test_what_the_cache_knows_is_not_played_again_and_ends_alike() -> None:
    cache = TimingCache()
    ends: list[list[str]] = []
    played: list[int] = []
    sorted_times: list[object] = []
    for _ in range(2):
        graph = network(6)
        choice = chosen_alone(graph)
        better = one_other(choice, graph.nodes[3])
        plan_timer = FakeStage(graph, choice, one_is_fast(graph.nodes[3], better))
        trial(choice, plan_timer, cache).run()
        ends.append([str(choice.tactics[n]) for n in graph.nodes])
        sorted_times.append(choice.in_network_times)
        played.append(len(plan_timer.played))
    assert played[0] > played[1] == 0
    assert ends[0] == ends[1]
    assert sorted_times[0] == sorted_times[1]


def test_without_time_nothing_is_played() -> None:
    graph = network(4)
    choice = chosen_alone(graph)
    before = dict(choice.tactics)
    plan_timer = FakeStage(graph, choice, lambda _cast, _i: 1.0)
    trial(choice, plan_timer, deadline=-math.inf).run()
    assert not plan_timer.played
    assert choice.tactics == before
    assert not choice.in_network_times


def test_a_plan_so_short_that_it_stays_in_the_cache_is_not_played() -> None:
    graph = network(2)
    choice = chosen_alone(graph)
    plan_timer = FakeStage(graph, choice)
    trial(choice, plan_timer, min_plan_seconds=1.0).run()
    assert not plan_timer.played


def test_runs_that_were_held_up_are_left_out() -> None:
    times = np.array([[1.0, 2.0], [3.0, 4.5], [1.1, 2.1]])
    assert without_outliers(times).tolist() == [[1.0, 2.0], [1.1, 2.1]]
