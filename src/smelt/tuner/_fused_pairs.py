"""Whether two nodes are better computed by one launch: by the same times that choose tactics.

Alone, a chain of two competes with the best tactic of each of the two. Where whole plans can be
timed, that only says which chains are worth a plan. Where several would have a node in common,
those come first that save most.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.ir import clone
from smelt.ops import FusedPair
from smelt.passes import Note, Pass, PassResult, fuse_pair_nodes, run_passes, unfusable_pair_reason
from smelt.tuner._benchmark_timer import LONG_SECONDS, node_text
from smelt.tuner._tactic_choice import Choice
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smelt.backends import Tactic
    from smelt.ir import Graph, Node
    from smelt.passes import PassReport
    from smelt.tuner._tactic_choice import Timer

    Lister = Callable[[Node], Sequence[Tactic]]
    CanFusePair = Callable[[Node, Node], bool]

_LOG = logging.getLogger(__name__)
_MAX_ESTIMATED_RATIO: Final = 1.15
"""How much longer than both its parts a chain may be estimated to take, and still be timed: where
both take little, for a launch less saves more than estimates know."""


@dataclass(frozen=True, slots=True)
class PairProposal:
    """Two nodes of a graph, by their positions, and the chain that they would be."""

    node_indices: tuple[int, int]
    chain: Node
    """In a copy of the graph, for what can run it depends on its place."""
    tactics: tuple[Tactic, ...]


def propose_fused_pairs(
    graph: Graph, can_fuse_pair: CanFusePair, list_tactics: Lister
) -> list[PairProposal]:
    """The chains that estimates do not rule out."""
    found: list[PairProposal] = []
    best: dict[Node, float] = {}

    def least(node: Node) -> float:
        if node not in best:
            best[node] = min((t.cost_hint for t in list_tactics(node)), default=math.inf)
        return best[node]

    for fused_seconds in _disjoint_groups(graph, _pairs(graph, can_fuse_pair)):
        copy = clone(graph)
        nodes = list(copy.nodes)
        chained = [
            fuse_pair_nodes(copy, *(nodes[place] for place in node_indices))
            for node_indices in fused_seconds
        ]
        for node_indices, chain in zip(fused_seconds, chained, strict=True):
            tactics = [t for t in list_tactics(chain) if not t.is_reference]
            separate_seconds = sum(least(graph.nodes[place]) for place in node_indices)
            most = (
                separate_seconds
                if separate_seconds > 2 * LONG_SECONDS
                else _MAX_ESTIMATED_RATIO * separate_seconds
            )
            if min((t.cost_hint for t in tactics), default=math.inf) < most:
                found.append(PairProposal(node_indices, chain, tuple(tactics)))
    return sorted(found, key=lambda proposal: proposal.node_indices[::-1])


def _disjoint_groups(
    graph: Graph, pairs: Iterable[tuple[Node, Node]]
) -> list[list[tuple[int, int]]]:
    """The places of pairs, by groups in which none has a node in common with another.

    So two or three copies of a graph do for all of its chains.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    groups: list[tuple[list[tuple[int, int]], set[int]]] = []
    for first, second in pairs:
        node_indices = order[first], order[second]
        free = next((group for group in groups if group[1].isdisjoint(node_indices)), None)
        if free is None:
            groups.append(free := ([], set()))
        free[0].append(node_indices)
        free[1].update(node_indices)
    return [found for found, _ in groups]


def _pairs(graph: Graph, can_fuse_pair: CanFusePair) -> Iterator[tuple[Node, Node]]:
    for second in graph.nodes:
        source = second.inputs[0] if second.inputs else None
        first = None if source is None else source.producer
        if first is None or len(first.outputs) > 1 or not can_fuse_pair(first, second):
            continue
        if unfusable_pair_reason(graph, first, second) is None and not _would_delay_parallel_branch(
            first, second
        ):
            yield first, second


def _would_delay_parallel_branch(first: Node, second: Node) -> bool:
    """Whether another reader of the first's result could run beside the second.

    It would then have to wait for both, where now it hides what the second takes.
    """
    after: set[Node] = set()
    stack = [second]
    while stack:
        node = stack.pop()
        if node not in after:
            after.add(node)
            stack += [user for value in node.outputs for user in value.users]
    return any(user not in after for user in first.output.users)


@dataclass(frozen=True, slots=True)
class PairTiming:
    """Two nodes of a graph, by their positions, and seconds: as one launch, and apart."""

    node_indices: tuple[int, int]
    fused_seconds: float
    separate_seconds: float

    def __str__(self) -> str:
        if math.isinf(self.fused_seconds):
            return "no fused launch passed the result check"
        times = (
            f"{seconds * 1e6:.2f} µs" for seconds in (self.fused_seconds, self.separate_seconds)
        )
        return "{} in one launch, {} in two".format(*times)


EquivalentPairs = tuple[PairTiming, ...]
"""Chains that compute alike, by the same tactics."""


class FusedPairTimings:
    """What chains of a graph take beside their parts, and the graph with some of them."""

    def __init__(
        self, graph: Graph, proposals: Sequence[PairProposal], list_tactics: Lister, timer: Timer
    ) -> None:
        """Time the proposals.

        Args:
            graph: optimised, its types inferred; it stays as it is.
            proposals: chains of its nodes.
            list_tactics: tells what can run a node.
            timer: tells what each tactic costs.
        """
        self.graph = graph
        self.timed: dict[str, list[tuple[Tactic, float]]] = {}
        """What each tactic of a chain takes, by its name: that of its second node, which is in one
        proposal. What can run it depends on its place, too."""
        pair_groups: dict[object, list[PairTiming]] = {}
        for proposal in proposals:
            parts = [graph.nodes[place] for place in proposal.node_indices]
            separate_seconds = sum(min(timer.seconds(node, list_tactics(node))) for node in parts)
            seconds = timer.verified_seconds(proposal.chain, proposal.tactics)
            pair_timing = PairTiming(proposal.node_indices, min(seconds), separate_seconds)
            _LOG.debug("%s: %s", proposal.chain, pair_timing)
            pair_groups.setdefault((node_text(proposal.chain), proposal.tactics), []).append(
                pair_timing
            )
            pairs = zip(proposal.tactics, seconds, strict=True)
            proven = [pair for pair in pairs if math.isfinite(pair[1])]
            self.timed[proposal.chain.name] = sorted(proven, key=lambda pair: pair[1])
        self.pair_groups: list[EquivalentPairs] = [
            tuple(pair_timings) for pair_timings in pair_groups.values()
        ]

    def faster(self, most: float) -> list[EquivalentPairs]:
        """The kinds that take no more than such a share of what their parts do."""
        return [
            kind
            for kind in self.pair_groups
            if kind[0].fused_seconds <= kind[0].separate_seconds * most
        ]

    def graph_with(self, pair_groups: Sequence[EquivalentPairs]) -> tuple[Graph, PassReport]:
        """A copy of the graph with the chains of some kinds; and what was done, and what not."""
        copy = clone(self.graph)
        pair_timings = tuple(pair_timing for kind in self.pair_groups for pair_timing in kind)
        wanted = frozenset(pair_timing.node_indices for kind in pair_groups for pair_timing in kind)
        return copy, run_passes(copy, (FuseProductPairs(pair_timings, wanted),))

    def choice(self, graph: Graph, held: Choice) -> Choice:
        """The choice for a graph with chains: theirs by the clock, elsewhere what holds without."""
        names = {node.name: node for node in self.graph.nodes}
        made = Choice(times=dict(held.times), in_network=dict(held.in_network))
        for node in graph.nodes:
            if isinstance(node.op, FusedPair):
                timed = self.timed[node.name]
                made.tactics[node], made.timed[node] = timed[0][0], timed
                made.times[node.name] = [(str(tactic), seconds) for tactic, seconds in timed]
                made.in_network.pop(node.name, None)
            else:
                twin = names[node.name]
                made.tactics[node], made.timed[node] = held.tactics[twin], held.timed[twin]
        return made


def with_pair_pdl(graph: Graph, choice: Choice, *, early: bool) -> dict[Node, Tactic]:
    """The tactics of a choice; chains start early, or not."""
    chains = [node for node in graph.nodes if isinstance(node.op, FusedPair)]
    tactics = {n: replace(choice.tactics[n], uses_pdl=early) for n in chains}
    return {**choice.tactics, **tactics}


@dataclass(frozen=True)
class FuseProductPairs(Pass):
    """Make one node of two; no node is in two chains, and those that save most come first."""

    name: ClassVar[str] = "fuse-product-pairs"

    pair_timings: tuple[PairTiming, ...]
    wanted: frozenset[tuple[int, int]]

    @override
    def apply(self, graph: Graph) -> PassResult:
        nodes = list(graph.nodes)
        taken: set[int] = set()
        notes: list[Note] = []
        ranked = sorted(
            self.pair_timings,
            key=lambda one: (one.fused_seconds - one.separate_seconds, one.node_indices),
        )
        for pair_timing in ranked:
            first, second = (nodes[place] for place in pair_timing.node_indices)
            layers = (*first.layers, *second.layers)
            if pair_timing.node_indices not in self.wanted or not taken.isdisjoint(
                pair_timing.node_indices
            ):
                is_slow = pair_timing.node_indices not in self.wanted
                reason = (
                    f"{pair_timing}"
                    if is_slow
                    else "one of the two nodes is in another fused pair, which saves more"
                )
                notes.append(Note.refusal(layers, reason))
                continue
            taken.update(pair_timing.node_indices)
            notes.append(
                Note(layers, fuse_pair_nodes(graph, first, second).layers, str(pair_timing))
            )
        return PassResult.of(notes)
