"""One tactic for each node: the least total of measured times and of copies between formats."""

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


class Timer(Protocol):
    """Says what tactics cost."""

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Told first of everything that it is going to be asked, to prepare it together."""
        ...

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """The time of each tactic, measured or estimated; infinity for one that is wrong."""
        ...

    def verified_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """The same of what one can do without: where there is a clock, it alone is believed."""
        ...

    def copy_seconds(self, moved_bytes: int) -> float:
        """The time of a step that copies between formats, reading and writing so many bytes."""
        ...

    def wrong_result_reason(self, node: Node) -> str:
        """Why all kernels that were tried for a node are wrong; empty where one is right."""
        ...


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a backend answered for a node."""

    tactics: tuple[Tactic, ...]
    refusals: tuple[Refusal, ...]


@dataclass(slots=True)
class Choice:
    """The decision for a graph, and its grounds for the inspector."""

    tactics: dict[Node, Tactic] = field(default_factory=dict["Node", "Tactic"])
    """The tactic of each node, by ``node``."""
    times: dict[str, list[tuple[str, float]]] = field(
        default_factory=dict[str, "list[tuple[str, float]]"]
    )
    """For each node by name, every candidate and its seconds, fastest first."""
    timed: dict[Node, list[tuple[Tactic, float]]] = field(
        default_factory=dict["Node", "list[tuple[Tactic, float]]"]
    )
    """The same, by ``node``."""
    in_network: dict[str, list[tuple[str, float]]] = field(
        default_factory=dict[str, "list[tuple[str, float]]"]
    )
    """For nodes whose best candidates were compared in the whole plan, the seconds of each there,
    with what it costs the nodes around it."""


def choose(
    graph: Graph,
    candidates: Mapping[Node, Candidates],
    timer: Timer,
    sizes: Mapping[str, int],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Choice:
    """Choose tactics, and with them formats, for the whole graph.

    Args:
        graph: optimised, its types inferred.
        candidates: for each node; each must have a tactic.
        timer: tells what each tactic costs.
        sizes: symbol values at which copies are priced.
        progress: told how many nodes are done, and of how many.
    """
    choice = Choice()
    kept: list[list[tuple[Tactic, float]]] = []
    progress(0, len(graph.nodes))
    timer.announce([(node, candidates[node].tactics) for node in graph.nodes])
    for node in graph.nodes:
        kept.append(_best_by_format(node, candidates[node], timer, choice))
        progress(len(kept), len(graph.nodes))
    copies = _Copies(timer, sizes)
    index = {n: i for i, n in enumerate(graph.nodes)}
    costs = [np.array([seconds for _, seconds in options]) for options in kept]
    edges: dict[tuple[int, int], Costs] = {}
    for number, node in enumerate(graph.nodes):
        for position, value in enumerate(node.inputs):
            if value is None or value.constant is not None:
                continue
            wanted = [tactic.inputs[position] for tactic, _ in kept[number]]
            if value.producer is None:
                costs[number] = costs[number] + [
                    copies.price(value, linear_format(value), w) for w in wanted
                ]
                continue
            maker = index[value.producer]
            made = [t.outputs[value.producer.outputs.index(value)] for t, _ in kept[maker]]
            matrix = np.array([[copies.price(value, m, w) for w in wanted] for m in made])
            edges[maker, number] = edges.get((maker, number), 0.0) + matrix
    for value in graph.outputs:
        if value.producer is not None:
            maker, asked = index[value.producer], linear_format(value)
            made = [t.outputs[value.producer.outputs.index(value)] for t, _ in kept[maker]]
            costs[maker] = costs[maker] + [copies.price(value, m, asked) for m in made]
    for node, options, chosen in zip(graph.nodes, kept, solve(costs, edges), strict=True):
        choice.tactics[node] = options[chosen][0]
    return choice


def _best_by_format(
    node: Node, candidates: Candidates, timer: Timer, choice: Choice
) -> list[tuple[Tactic, float]]:
    """The fastest tactic of each combination of formats: what remains to be decided together."""
    if not candidates.tactics:
        reasons = [str(refusal) for refusal in candidates.refusals] or [
            "no kernel family supports the op"
        ]
        raise UnsupportedError(f"no backend family can run {node}", reasons=reasons)
    seconds = timer.seconds(node, candidates.tactics)
    # Without a clock nothing is tried, and what has no estimate is infinite as well.
    if min(seconds) == math.inf and (wrong_result_reason := timer.wrong_result_reason(node)):
        reasons = [wrong_result_reason, *map(str, candidates.refusals)]
        raise UnsupportedError(
            f"every kernel that can run {node} gave wrong results", reasons=reasons
        )
    timed = sorted(zip(candidates.tactics, seconds, strict=True), key=lambda pair: pair[1])
    choice.timed[node] = timed
    choice.times[node.name] = [(str(tactic), time) for tactic, time in timed]
    best_tactic, best_time = choice.times[node.name][0]
    _LOG.debug(
        "%s: best of %d is %s, %.1e s", sanitize_name(node.name), len(timed), best_tactic, best_time
    )
    best: dict[object, tuple[Tactic, float]] = {}
    for tactic, time in timed:
        best.setdefault((tactic.inputs, tactic.outputs), (tactic, time))
    return list(best.values())


@dataclass(frozen=True, slots=True)
class _Copies:
    """What copies between formats cost."""

    timer: Timer
    sizes: Mapping[str, int]

    def price(self, value: Value, made: TensorFormat, wanted: TensorFormat | None) -> float:
        """Seconds of the copy between two formats, if one is needed."""
        if wanted is None or is_same_memory_order(value.tensor, made, wanted):
            return 0.0
        if wanted.layout is Layout.STRIDED and made.layout is Layout.LINEAR:
            return 0.0
        count = evaluate_dim(element_count(value.tensor.shape), self.sizes)
        moved = made.dtype.size_bytes + wanted.dtype.size_bytes
        return self.timer.copy_seconds(count * moved)
