"""Which nodes are chained: by times alone, and none that another node has a use for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from smelt import ops
from smelt.backends import Tactic
from smelt.ir import Graph, clone, verify
from smelt.tuner import (
    BenchmarkTimer,
    CostModelTimer,
    FusedPairTimings,
    TacticChoice,
    TimingCache,
    _fused_pairs,
    propose_fused_pairs,
    with_pair_pdl,
)
from smelt.types import DType, Limit, TensorFormat, TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.ir import Node, Value
    from smelt.tuner._isolated_node import TimingRepeats

_KIND = TensorType(DType.FLOAT32, (1, 4, 5, 5))
_FORMAT = TensorFormat(DType.FLOAT32)


def _conv(graph: Graph, x: Value, name: str) -> Node:
    weights = graph.add_constant(np.ones((4, 4, 1, 1), np.float32), f"{name}.w")
    return graph.add(ops.Conv((1, 1)), x, weights, name=name)


def _line(count: int) -> Graph:
    """Convolutions one behind the other."""
    graph = Graph("line")
    x = graph.add_input("x", _KIND)
    for number in range(count):
        x = _conv(graph, x, f"c{number}").output
    graph.outputs.append(x)
    return graph


class _Prices:
    """A tactic for each node: of microseconds by its name, chains' by their layers."""

    def __init__(self, costs: dict[tuple[str, ...], float], other: float = 2.0) -> None:
        self.costs, self.other = costs, other

    def tactics(self, node: Node) -> tuple[Tactic, ...]:
        cost = self.other
        if isinstance(node.op, ops.FusedPair):
            if node.layers not in self.costs:
                return ()
            cost = self.costs[node.layers]
        inputs = tuple(None if v and v.constant else _FORMAT for v in node.inputs)
        outputs = (_FORMAT,) * len(node.outputs)
        return (Tactic("priced", (), inputs, outputs, estimated_seconds=cost * 1e-6),)

    def chains(self, graph: Graph) -> FusedPairTimings:
        """The chains of a graph."""
        proposals = propose_fused_pairs(graph, _are_convs, self.tactics)
        return FusedPairTimings(graph, proposals, self.tactics, CostModelTimer())

    def chained(self, graph: Graph, most: float = 0.98) -> list[tuple[str, ...]]:
        """The layers of every node of what becomes of a graph."""
        chains = self.chains(graph)
        made, _ = chains.graph_with(chains.faster(most))
        verify(made)
        return [node.layers for node in made.nodes]


def _are_convs(first: Node, second: Node) -> bool:
    return all(isinstance(node.op, ops.Conv) for node in (first, second))


def test_two_nodes_are_one_where_that_takes_less() -> None:
    graph = _line(2)
    assert _Prices({("c0", "c1"): 3.0}).chained(graph) == [("c0", "c1")]
    assert [node.name for node in graph.nodes] == ["c0", "c1"]


@pytest.mark.parametrize("cost", [4.0, 3.99, 7.0])
def test_two_nodes_stay_apart_where_one_launch_takes_as_long(cost: float) -> None:
    assert _Prices({("c0", "c1"): cost}).chained(_line(2)) == [("c0",), ("c1",)]


def test_a_node_is_in_the_chain_that_saves_most() -> None:
    costs: dict[tuple[str, ...], float] = {
        ("c0", "c1"): 3.5,
        ("c1", "c2"): 2.0,
        ("c2", "c3"): 3.0,
    }
    assert _Prices(costs).chained(_line(4)) == [("c0",), ("c1", "c2"), ("c3",)]


def test_what_is_read_later_stays_a_result() -> None:
    graph = _line(3)
    graph.outputs.append(graph.nodes[0].output)
    chains = _Prices({("c0", "c1"): 1.0}).chains(graph)
    chained, report = chains.graph_with(chains.pair_groups)
    chain = chained.nodes[0]
    assert [value.name for value in chain.outputs] == ["c1", "c0"]
    assert [value.name for value in chained.outputs] == ["c2", "c0"]
    assert [str(note) for note in report.notes] == [
        "c0 + c1 -> c0 + c1: 1.00 µs in one launch, 4.00 µs in two"
    ]
    x = np.random.default_rng(0).standard_normal((1, 4, 5, 5)).astype(np.float32)
    w = np.ones((4, 4, 1, 1), np.float32)
    (between,) = ops.Conv((1, 1)).reference(x, w)
    second, first = chain.op.reference(x, w, w)
    np.testing.assert_array_equal(first, between)
    np.testing.assert_array_equal(second, ops.Conv((1, 1)).reference(between, w)[0])


def test_nodes_stay_apart_where_another_runs_beside_the_second() -> None:
    graph = _line(2)
    other = _conv(graph, graph.nodes[0].output, "beside")
    graph.outputs.append(other.output)
    assert not propose_fused_pairs(graph, _are_convs, _Prices({("c0", "c1"): 1.0}).tactics)


def test_nodes_stay_apart_where_the_result_is_needed_between_them() -> None:
    graph = Graph("between")
    first = _conv(graph, graph.add_input("x", _KIND), "first")
    half = graph.add(ops.Relu(), first.output, name="half")
    weights = graph.add_constant(np.ones((4, 4, 1, 1), np.float32), "w")
    stage = ops.Stage(ops.Add(), (-1, 2))
    op = ops.Fused(ops.Conv((1, 1)), 2, (stage,))
    second = graph.add(op, first.output, weights, half.output, name="second")
    graph.outputs.append(second.output)
    assert not propose_fused_pairs(graph, lambda _a, _b: True, _Prices({}).tactics)


def test_chains_that_compute_alike_are_one_kind() -> None:
    costs: dict[tuple[str, ...], float] = {("c0", "c1"): 3.0, ("c1", "c2"): 3.0}
    chains = _Prices(costs).chains(_line(3))
    assert [[pair_timing.node_indices for pair_timing in kind] for kind in chains.pair_groups] == [
        [(0, 1), (1, 2)]
    ]
    assert chains.faster(0.75) == chains.pair_groups
    assert not chains.faster(0.7)


def test_chains_that_compute_alike_keep_the_tactics_of_their_places() -> None:
    graph = _line(4)
    prices = _Prices({("c0", "c1"): 3.0, ("c2", "c3"): 3.0})

    def tactics(node: Node) -> tuple[Tactic, ...]:
        is_last = all(not value.users for value in node.outputs)
        kind = DType.FLOAT32 if is_last else DType.FLOAT16
        outputs = (TensorFormat(kind),) * len(node.outputs)
        return tuple(replace(tactic, output_formats=outputs) for tactic in prices.tactics(node))

    held = TacticChoice()
    for node in graph.nodes:
        (held.tactics[node],) = tactics(node)
        held.candidate_times[node], held.times[node.name] = [], []
    chains = FusedPairTimings(
        graph, propose_fused_pairs(graph, _are_convs, tactics), tactics, CostModelTimer()
    )
    assert len(chains.pair_groups) == 2
    made, _ = chains.graph_with(chains.pair_groups)
    choice = chains.choice(made, held)
    pair_groups = [choice.tactics[node].output_formats[0].dtype for node in made.nodes]
    assert pair_groups == [DType.FLOAT16, DType.FLOAT32]


def test_what_holds_without_chains_holds_beside_them() -> None:
    graph = _line(3)
    prices = _Prices({("c0", "c1"): 1.0})
    held = TacticChoice()
    for node in graph.nodes:
        (tactic,) = prices.tactics(node)
        held.tactics[node] = replace(tactic, uses_pdl=True)
        held.candidate_times[node] = [(tactic, 2e-6)]
        held.times[node.name] = [(str(tactic), 2e-6)]
    chains = prices.chains(graph)
    made, _ = chains.graph_with(chains.pair_groups)
    choice = chains.choice(made, held)
    chain, last = made.nodes
    assert choice.candidate_times[chain] == [(prices.tactics(chain)[0], 1e-6)]
    assert choice.times["c1"] == [(str(prices.tactics(chain)[0]), 1e-6)]
    for early in (False, True):
        cast = with_pair_pdl(made, choice, uses_pdl=early)
        assert cast[chain].uses_pdl is early
        assert cast[last] == held.tactics[graph.nodes[2]]


def test_two_copies_of_a_line_do_for_all_of_its_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Graph] = []

    def cloned(graph: Graph) -> Graph:
        copies.append(clone(graph))
        return copies[-1]

    monkeypatch.setattr(_fused_pairs, "clone", cloned)
    count = 9
    prices = _Prices({(f"c{n}", f"c{n + 1}"): 1.0 for n in range(count)})
    proposals = propose_fused_pairs(_line(count), _are_convs, prices.tactics)
    assert [one.node_indices for one in proposals] == [(n, n + 1) for n in range(count - 1)]
    assert len(copies) == 2
    for graph in copies:
        verify(graph)


def test_what_no_tactic_computes_is_not_proposed() -> None:
    assert not propose_fused_pairs(_line(3), _are_convs, _Prices({}).tactics)


class _Clock:
    """A laboratory in which nodes take two microseconds, and chains what it is told."""

    trial_limit: ClassVar[Limit] = Limit.MAX_TRIAL_BYTES
    copy_sample_types: ClassVar[tuple[TensorType, TensorType]] = (_KIND, _KIND)

    def __init__(self, fused_seconds: float) -> None:
        self.fused_seconds = fused_seconds
        self.where = "here"
        self.sizes: Mapping[str, int] = {}
        self.refused: Mapping[tuple[str, str], str] = {}

    def compile_candidates(
        self, work: Sequence[tuple[Node, Tactic]], *, deadline: float
    ) -> None: ...

    def seconds(
        self, node: Node, tactics: Sequence[Tactic], *, repeats: TimingRepeats
    ) -> list[float]:
        del repeats
        return [self.fused_seconds if isinstance(node.op, ops.FusedPair) else 2e-6] * len(tactics)

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        del kind, repeats
        return 1e-6


@pytest.mark.parametrize(
    ("fused_seconds", "seconds_left", "is_chained"),
    [(1e-6, 60.0, True), (math.inf, 60.0, False), (math.nan, 60.0, False), (1e-6, -1.0, False)],
    ids=["right", "wrong", "not reached", "late"],
)
def test_where_there_is_a_clock_a_chain_that_was_not_timed_is_as_good_as_refused(
    fused_seconds: float, seconds_left: float, is_chained: bool
) -> None:
    graph, prices = _line(2), _Prices({("c0", "c1"): 0.5})
    timer = BenchmarkTimer(
        _Clock(fused_seconds), TimingCache(), max_timed=3, repeats=1, seconds=seconds_left
    )
    proposals = propose_fused_pairs(graph, _are_convs, prices.tactics)
    chains = FusedPairTimings(graph, proposals, prices.tactics, timer)
    made, report = chains.graph_with(chains.faster(1.05))
    assert len(made.nodes) == (1 if is_chained else 2)
    if not is_chained:
        (note,) = report.notes
        assert str(note).endswith("no fused launch passed the result check")
