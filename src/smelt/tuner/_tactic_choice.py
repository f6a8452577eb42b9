"""Choice of one tactic per node that minimises the total of node times and format copies."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from smelt.backends import is_same_memory_order, linear_format
from smelt.errors import UnsupportedError, sanitize_name
from smelt.tuner._pbqp import Costs, solve
from smelt.types import Layout, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.backends import Refusal, Tactic
    from smelt.ir import Graph, Node, Value
    from smelt.types import TensorFormat

_LOG = logging.getLogger(__name__)

NamedTimes = dict[str, list[tuple[str, float]]]
"""Texts of tactics with their seconds, by node name."""
TimedTactics = list[tuple["Tactic", float]]
"""Tactics with their seconds."""


class Timer(Protocol):
    """Interface of timers: returns the costs of tactics and of format copies in seconds."""

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Prepare for timing all nodes and tactics in ``work``, e.g. compile them together."""
        ...

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Return measured or estimated seconds of each tactic; infinity for wrong results."""
        ...

    def verified_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Return seconds of optional tactics: measured times only, if the timer measures at all.

        Infinity marks a tactic that is wrong or was not measured.
        """
        ...

    def copy_seconds(self, moved_bytes: int) -> float:
        """Return seconds of a format copy that reads and writes ``moved_bytes`` in total."""
        ...

    def wrong_result_reason(self, node: Node) -> str:
        """Return why all measured tactics of a node were rejected; empty if one was accepted."""
        ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tactics that a backend offers for a node, and its reasons against others."""

    tactics: tuple[Tactic, ...]
    refusals: tuple[Refusal, ...]


@dataclass(slots=True)
class TacticChoice:
    """The chosen tactics of a graph, with the times on which the choice is based."""

    tactics: dict[Node, Tactic] = field(default_factory=dict["Node", "Tactic"])
    """The chosen tactic of each node."""
    times: NamedTimes = field(default_factory=NamedTimes)
    """Candidates of each node with their seconds, fastest first, as text by node name."""
    candidate_times: dict[Node, TimedTactics] = field(default_factory=dict["Node", TimedTactics])
    """Candidates of each node with their seconds, fastest first."""
    in_network_times: NamedTimes = field(default_factory=NamedTimes)
    """Seconds of candidates measured in the whole plan, by node name, fastest first. They include
    the effect on the nodes around."""


def choose(
    graph: Graph,
    candidates: Mapping[Node, Candidates],
    timer: Timer,
    sizes: Mapping[str, int],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> TacticChoice:
    """Choose tactics, and with them formats, for the whole graph.

    Args:
        graph: optimised graph with inferred types.
        candidates: candidates of each node.
        timer: returns the seconds of tactics and copies.
        sizes: symbol values at which the costs of copies are computed.
        progress: called with the number of nodes that are done and the total.

    Raises:
        UnsupportedError: a node has no candidate, or all its candidates give wrong results.
    """
    choice = TacticChoice()
    options: list[TimedTactics] = []
    progress(0, len(graph.nodes))
    timer.announce([(node, candidates[node].tactics) for node in graph.nodes])
    for node in graph.nodes:
        options.append(_best_by_format(node, candidates[node], timer, choice))
        progress(len(options), len(graph.nodes))
    copies = _CopyCosts(timer, sizes)
    index = {n: i for i, n in enumerate(graph.nodes)}
    costs = [np.array([seconds for _, seconds in entries]) for entries in options]
    edges: dict[tuple[int, int], Costs] = {}
    for number, node in enumerate(graph.nodes):
        for position, value in enumerate(node.inputs):
            if value is None or value.constant is not None:
                continue
            required = [tactic.input_formats[position] for tactic, _ in options[number]]
            if value.producer is None:
                costs[number] = costs[number] + [
                    copies.price(value, linear_format(value), r) for r in required
                ]
                continue
            producer = index[value.producer]
            formats = _formats_of(value, value.producer, options[producer])
            matrix = np.array([[copies.price(value, p, r) for r in required] for p in formats])
            edges[producer, number] = edges.get((producer, number), 0.0) + matrix
    for value in graph.outputs:
        if value.producer is not None:
            source, target = index[value.producer], linear_format(value)
            formats = _formats_of(value, value.producer, options[source])
            costs[source] = costs[source] + [copies.price(value, p, target) for p in formats]
    for node, entries, chosen in zip(graph.nodes, options, solve(costs, edges), strict=True):
        choice.tactics[node] = entries[chosen][0]
    return choice


def _formats_of(value: Value, producer: Node, entries: TimedTactics) -> list[TensorFormat]:
    """Return the format in which each of the producer's tactics stores a value."""
    output = producer.outputs.index(value)
    return [tactic.output_formats[output] for tactic, _ in entries]


def _best_by_format(
    node: Node, candidates: Candidates, timer: Timer, choice: TacticChoice
) -> TimedTactics:
    """Time the candidates of a node; return the fastest of each combination of formats."""
    if not candidates.tactics:
        reasons = [str(refusal) for refusal in candidates.refusals] or [
            "no kernel family supports the op"
        ]
        arguments = [a for refusal in candidates.refusals for a in refusal.arguments]
        raise UnsupportedError(
            f"no kernel family can run {node}", reasons=reasons, arguments=arguments
        )
    seconds = timer.seconds(node, candidates.tactics)
    # A timer that measures nothing gives no reason; a missing estimate is infinite, too.
    if min(seconds) == math.inf and (wrong_result_reason := timer.wrong_result_reason(node)):
        reasons = [wrong_result_reason, *map(str, candidates.refusals)]
        raise UnsupportedError(f"every kernel that can run {node} was rejected", reasons=reasons)
    timed = sorted(zip(candidates.tactics, seconds, strict=True), key=lambda pair: pair[1])
    choice.candidate_times[node] = timed
    choice.times[node.name] = [(str(tactic), time) for tactic, time in timed]
    best_text = "%s: the best of %d tactics is %s, %.1e s"
    _LOG.debug(best_text, sanitize_name(node.name), len(timed), *choice.times[node.name][0])
    best: dict[object, tuple[Tactic, float]] = {}
    for tactic, time in timed:
        best.setdefault(tactic.formats, (tactic, time))
    return list(best.values())


@dataclass(frozen=True, slots=True)
class _CopyCosts:
    """Costs of copies between formats."""

    timer: Timer
    sizes: Mapping[str, int]

    def price(self, value: Value, produced: TensorFormat, required: TensorFormat | None) -> float:
        """Return the seconds of a copy from one format to another; 0 if no copy is needed."""
        if required is None or is_same_memory_order(value.tensor, produced, required):
            return 0.0
        if required.layout is Layout.STRIDED and produced.layout is Layout.LINEAR:
            return 0.0
        count = evaluate_dim(element_count(value.tensor.shape), self.sizes)
        moved = produced.dtype.size_bytes + required.dtype.size_bytes
        return self.timer.copy_seconds(count * moved)
