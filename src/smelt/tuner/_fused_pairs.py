"""Selection of fused pairs (back-to-back fusion) by measured times.

The time of a fused pair as an isolated node is compared with the sum of the best times of its two
parts. Where whole plans can be timed, this comparison only selects the pairs that are worth a
plan. Of pairs that share a node, the one that saves most is fused.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from smelt.ir import clone
from smelt.ops import FusedPair
from smelt.passes import Note, Pass, PassResult, fuse_pair_nodes, run_passes, unfusable_pair_reason
from smelt.tuner._benchmark_timer import SLOW_SECONDS, node_text
from smelt.tuner._tactic_choice import TacticChoice
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smelt.backends import Tactic
    from smelt.ir import Graph, Node
    from smelt.passes import PassPipelineReport
    from smelt.tuner._tactic_choice import Timer

    Lister = Callable[[Node], Sequence[Tactic]]
    CanFusePair = Callable[[Node, Node], bool]

_LOG = logging.getLogger(__name__)
_MAX_ESTIMATED_RATIO: Final = 1.15
"""Maximum ratio of a fused pair's estimate to the sum of its parts' estimates for it to be timed.
It applies to short nodes, where saving a launch gains more than the estimates account for. Chosen
without a measurement."""


@dataclass(frozen=True, slots=True)
class PairProposal:
    """Two nodes of a graph, by position, and the fused pair that could replace them."""

    node_indices: tuple[int, int]
    chain: Node
    """The fused node in a copy of the graph; which tactics support it depends on its neighbours."""
    tactics: tuple[Tactic, ...]


def propose_fused_pairs(
    graph: Graph, can_fuse_pair: CanFusePair, list_tactics: Lister
) -> list[PairProposal]:
    """Return the fused pairs whose estimates are good enough for them to be timed."""
    proposals: list[PairProposal] = []
    least_seconds: dict[Node, float] = {}

    def least(node: Node) -> float:
        if node not in least_seconds:
            least_seconds[node] = min(
                (t.estimated_seconds for t in list_tactics(node)), default=math.inf
            )
        return least_seconds[node]

    for group in _disjoint_groups(graph, _pairs(graph, can_fuse_pair)):
        copy = clone(graph)
        nodes = list(copy.nodes)
        chains = [
            fuse_pair_nodes(copy, *(nodes[index] for index in node_indices))
            for node_indices in group
        ]
        for node_indices, chain in zip(group, chains, strict=True):
            tactics = [t for t in list_tactics(chain) if not t.is_host_step]
            separate_seconds = sum(least(graph.nodes[index]) for index in node_indices)
            ratio = 1.0 if separate_seconds > 2 * SLOW_SECONDS else _MAX_ESTIMATED_RATIO
            fused_seconds = min((t.estimated_seconds for t in tactics), default=math.inf)
            if fused_seconds < ratio * separate_seconds:
                proposals.append(PairProposal(node_indices, chain, tuple(tactics)))
    return sorted(proposals, key=lambda proposal: proposal.node_indices[::-1])


def _disjoint_groups(
    graph: Graph, pairs: Iterable[tuple[Node, Node]]
) -> list[list[tuple[int, int]]]:
    """Return positions of pairs in groups; pairs of one group have no node in common.

    All pairs of a group can be fused in one copy of the graph, so few copies are needed.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    groups: list[tuple[list[tuple[int, int]], set[int]]] = []
    for first, second in pairs:
        node_indices = order[first], order[second]
        target = next((group for group in groups if group[1].isdisjoint(node_indices)), None)
        if target is None:
            groups.append(target := ([], set()))
        target[0].append(node_indices)
        target[1].update(node_indices)
    return [pairs_of_group for pairs_of_group, _ in groups]


def _pairs(graph: Graph, can_fuse_pair: CanFusePair) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of nodes that may be fused without delaying a parallel branch.

    Nodes of different precision are not fused: one of them stays in float32.
    """
    for second in graph.nodes:
        source = second.inputs[0] if second.inputs else None
        first = None if source is None else source.producer
        if first is None or len(first.outputs) > 1 or first.precision is not second.precision:
            continue
        if not can_fuse_pair(first, second):
            continue
        if unfusable_pair_reason(graph, first, second) is None and not _would_delay_parallel_branch(
            first, second
        ):
            yield first, second


def _would_delay_parallel_branch(first: Node, second: Node) -> bool:
    """Return whether another reader of the first's result could run concurrently with the second.

    After fusion that reader would wait for both nodes; without it, the two overlap.
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
    """Seconds of two nodes, given by position: as one fused launch and as separate launches."""

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
"""Timings of fused pairs that compute the same with the same tactics."""


class FusedPairTimings:
    """Times of fused pairs and of their parts, and graphs in which some pairs are fused."""

    def __init__(
        self, graph: Graph, proposals: Sequence[PairProposal], list_tactics: Lister, timer: Timer
    ) -> None:
        """Time the proposals.

        Args:
            graph: optimised graph with inferred types; it is not changed.
            proposals: fused pairs of its nodes.
            list_tactics: returns the tactics that support a node.
            timer: returns the seconds of each tactic.
        """
        self.graph = graph
        self.timed: dict[str, list[tuple[Tactic, float]]] = {}
        """Tactics of each fused pair with their seconds, fastest first, by the name of the fused
        node. That is the name of its second node, which is in one proposal only."""
        pair_groups: dict[object, list[PairTiming]] = {}
        for proposal in proposals:
            parts = [graph.nodes[place] for place in proposal.node_indices]
            separate_seconds = sum(min(timer.seconds(node, list_tactics(node))) for node in parts)
            seconds = timer.verified_seconds(proposal.chain, proposal.tactics)
            pair_timing = PairTiming(proposal.node_indices, min(seconds), separate_seconds)
            _LOG.debug("%s: %s", proposal.chain, pair_timing)
            key = (node_text(proposal.chain), proposal.tactics)
            pair_groups.setdefault(key, []).append(pair_timing)
            pairs = zip(proposal.tactics, seconds, strict=True)
            proven = [pair for pair in pairs if math.isfinite(pair[1])]
            self.timed[proposal.chain.name] = sorted(proven, key=lambda pair: pair[1])
        self.pair_groups: list[EquivalentPairs] = list(map(tuple, pair_groups.values()))

    def faster(self, max_ratio: float) -> list[EquivalentPairs]:
        """Return the groups whose fused time is at most ``max_ratio`` of their parts' time."""
        return [
            kind
            for kind in self.pair_groups
            if kind[0].fused_seconds <= kind[0].separate_seconds * max_ratio
        ]

    def graph_with(
        self, pair_groups: Sequence[EquivalentPairs]
    ) -> tuple[Graph, PassPipelineReport]:
        """Return a copy of the graph with the pairs of some groups fused, and the pass report."""
        copy = clone(self.graph)
        pair_timings = tuple(pair_timing for kind in self.pair_groups for pair_timing in kind)
        wanted = frozenset(pair_timing.node_indices for kind in pair_groups for pair_timing in kind)
        return copy, run_passes(copy, (FuseProductPairs(pair_timings, wanted),))

    def choice(self, graph: Graph, base_choice: TacticChoice) -> TacticChoice:
        """Return the choice for a graph with fused pairs; other nodes keep ``base_choice``."""
        names = {node.name: node for node in self.graph.nodes}
        choice = TacticChoice(
            times=dict(base_choice.times), in_network_times=dict(base_choice.in_network_times)
        )
        for node in graph.nodes:
            if isinstance(node.op, FusedPair):
                timed = self.timed[node.name]
                choice.tactics[node], choice.candidate_times[node] = timed[0][0], timed
                choice.times[node.name] = [(str(tactic), seconds) for tactic, seconds in timed]
                choice.in_network_times.pop(node.name, None)
            else:
                base_node = names[node.name]
                choice.tactics[node] = base_choice.tactics[base_node]
                choice.candidate_times[node] = base_choice.candidate_times[base_node]
        return choice


def with_pair_pdl(graph: Graph, choice: TacticChoice, *, uses_pdl: bool) -> dict[Node, Tactic]:
    """Return the tactics of a choice, with PDL of fused pairs switched on or off."""
    chains = [node for node in graph.nodes if isinstance(node.op, FusedPair)]
    tactics = {n: replace(choice.tactics[n], uses_pdl=uses_pdl) for n in chains}
    return {**choice.tactics, **tactics}


@dataclass(frozen=True)
class FuseProductPairs(Pass):
    """Fuses pairs of nodes, those that save most first; a node is fused at most once."""

    pair_timings: tuple[PairTiming, ...]
    wanted: frozenset[tuple[int, int]]

    @override
    def apply(self, graph: Graph) -> PassResult:
        nodes = list(graph.nodes)
        fused: set[int] = set()
        notes: list[Note] = []
        ranked = sorted(
            self.pair_timings, key=lambda t: (t.fused_seconds - t.separate_seconds, t.node_indices)
        )
        for pair_timing in ranked:
            indices = pair_timing.node_indices
            first, second = (nodes[index] for index in indices)
            layers = (*first.layers, *second.layers)
            if indices not in self.wanted:
                notes.append(Note.refusal(layers, str(pair_timing)))
            elif not fused.isdisjoint(indices):
                reason = "one of the two nodes is in another fused pair, which saves more"
                notes.append(Note.refusal(layers, reason))
            else:
                fused.update(indices)
                chain = fuse_pair_nodes(graph, first, second)
                notes.append(Note(layers, chain.layers, str(pair_timing)))
        return PassResult.of(notes)
