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
from smelt.ops import Chain
from smelt.passes import Note, Pass, PassResult, chain_nodes, run_passes, why_not_chained
from smelt.tuner._choose import Choice
from smelt.tuner._measure import LONG_SECONDS, node_text
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from smelt.backends import Tactic
    from smelt.ir import Graph, Node
    from smelt.passes import PassReport
    from smelt.tuner._choose import Timer

    Lister = Callable[[Node], Sequence[Tactic]]
    MayChain = Callable[[Node, Node], bool]

_LOG = logging.getLogger(__name__)
_HOPELESS: Final = 1.15
"""How much longer than both its parts a chain may be estimated to take, and still be timed: where
both take little, for a launch less saves more than estimates know."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Two nodes of a graph, by their positions, and the chain that they would be."""

    places: tuple[int, int]
    chain: Node
    """In a copy of the graph, for what can run it depends on its place."""
    tactics: tuple[Tactic, ...]


def propose_chains(graph: Graph, may_chain: MayChain, list_tactics: Lister) -> list[Proposal]:
    """The chains that estimates do not rule out."""
    found: list[Proposal] = []
    best: dict[Node, float] = {}

    def least(node: Node) -> float:
        if node not in best:
            best[node] = min((t.cost_hint for t in list_tactics(node)), default=math.inf)
        return best[node]

    for together in _apart(graph, _pairs(graph, may_chain)):
        copy = clone(graph)
        nodes = list(copy.nodes)
        chained = [chain_nodes(copy, *(nodes[place] for place in places)) for places in together]
        for places, chain in zip(together, chained, strict=True):
            tactics = [t for t in list_tactics(chain) if not t.is_reference]
            apart = sum(least(graph.nodes[place]) for place in places)
            most = apart if apart > 2 * LONG_SECONDS else _HOPELESS * apart
            if min((t.cost_hint for t in tactics), default=math.inf) < most:
                found.append(Proposal(places, chain, tuple(tactics)))
    return sorted(found, key=lambda proposal: proposal.places[::-1])


def _apart(graph: Graph, pairs: Iterable[tuple[Node, Node]]) -> list[list[tuple[int, int]]]:
    """The places of pairs, by groups in which none has a node in common with another.

    So two or three copies of a graph do for all of its chains.
    """
    order = {node: place for place, node in enumerate(graph.nodes)}
    groups: list[tuple[list[tuple[int, int]], set[int]]] = []
    for first, second in pairs:
        places = order[first], order[second]
        free = next((group for group in groups if group[1].isdisjoint(places)), None)
        if free is None:
            groups.append(free := ([], set()))
        free[0].append(places)
        free[1].update(places)
    return [found for found, _ in groups]


def _pairs(graph: Graph, may_chain: MayChain) -> Iterator[tuple[Node, Node]]:
    for second in graph.nodes:
        source = second.inputs[0] if second.inputs else None
        first = None if source is None else source.producer
        if first is None or len(first.outputs) > 1 or not may_chain(first, second):
            continue
        if why_not_chained(graph, first, second) is None and not _is_hurried(first, second):
            yield first, second


def _is_hurried(first: Node, second: Node) -> bool:
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
class Rival:
    """Two nodes of a graph, by their positions, and seconds: as one launch, and apart."""

    places: tuple[int, int]
    together: float
    apart: float

    def __str__(self) -> str:
        if math.isinf(self.together):
            return "no launch of both was seen to compute what they do"
        times = (f"{seconds * 1e6:.2f} µs" for seconds in (self.together, self.apart))
        return "{} in one launch, {} in two".format(*times)


Kind = tuple[Rival, ...]
"""Chains that compute alike, by the same tactics."""


class Chains:
    """What chains of a graph take beside their parts, and the graph with some of them."""

    def __init__(
        self, graph: Graph, proposals: Sequence[Proposal], list_tactics: Lister, timer: Timer
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
        kinds: dict[object, list[Rival]] = {}
        for proposal in proposals:
            parts = [graph.nodes[place] for place in proposal.places]
            apart = sum(min(timer.seconds(node, list_tactics(node))) for node in parts)
            seconds = timer.proven_seconds(proposal.chain, proposal.tactics)
            rival = Rival(proposal.places, min(seconds), apart)
            _LOG.debug("%s: %s", proposal.chain, rival)
            kinds.setdefault((node_text(proposal.chain), proposal.tactics), []).append(rival)
            pairs = zip(proposal.tactics, seconds, strict=True)
            proven = [pair for pair in pairs if math.isfinite(pair[1])]
            self.timed[proposal.chain.name] = sorted(proven, key=lambda pair: pair[1])
        self.kinds: list[Kind] = [tuple(rivals) for rivals in kinds.values()]

    def faster(self, most: float) -> list[Kind]:
        """The kinds that take no more than such a share of what their parts do."""
        return [kind for kind in self.kinds if kind[0].together <= kind[0].apart * most]

    def formed(self, kinds: Sequence[Kind]) -> tuple[Graph, PassReport]:
        """A copy of the graph with the chains of some kinds; and what was done, and what not."""
        copy = clone(self.graph)
        rivals = tuple(rival for kind in self.kinds for rival in kind)
        wanted = frozenset(rival.places for kind in kinds for rival in kind)
        return copy, run_passes(copy, (ChainProducts(rivals, wanted),))

    def choice(self, graph: Graph, held: Choice) -> Choice:
        """The choice for a graph with chains: theirs by the clock, elsewhere what holds without."""
        names = {node.name: node for node in self.graph.nodes}
        made = Choice(times=dict(held.times), in_network=dict(held.in_network))
        for node in graph.nodes:
            if isinstance(node.op, Chain):
                timed = self.timed[node.name]
                made.tactics[node], made.timed[node] = timed[0][0], timed
                made.times[node.name] = [(str(tactic), seconds) for tactic, seconds in timed]
                made.in_network.pop(node.name, None)
            else:
                twin = names[node.name]
                made.tactics[node], made.timed[node] = held.tactics[twin], held.timed[twin]
        return made


def launched(graph: Graph, choice: Choice, *, early: bool) -> dict[Node, Tactic]:
    """The tactics of a choice; chains start early, or not."""
    chains = [node for node in graph.nodes if isinstance(node.op, Chain)]
    tactics = {n: replace(choice.tactics[n], starts_early=early) for n in chains}
    return {**choice.tactics, **tactics}


@dataclass(frozen=True)
class ChainProducts(Pass):
    """Make one node of two; no node is in two chains, and those that save most come first."""

    name: ClassVar[str] = "chain-products"

    rivals: tuple[Rival, ...]
    wanted: frozenset[tuple[int, int]]

    @override
    def apply(self, graph: Graph) -> PassResult:
        nodes = list(graph.nodes)
        taken: set[int] = set()
        notes: list[Note] = []
        ranked = sorted(self.rivals, key=lambda one: (one.together - one.apart, one.places))
        for rival in ranked:
            first, second = (nodes[place] for place in rival.places)
            layers = (*first.layers, *second.layers)
            if rival.places not in self.wanted or not taken.isdisjoint(rival.places):
                is_slow = rival.places not in self.wanted
                reason = f"{rival}" if is_slow else "a chain that saves more has one of them"
                notes.append(Note.refusal(layers, reason))
                continue
            taken.update(rival.places)
            notes.append(Note(layers, chain_nodes(graph, first, second).layers, str(rival)))
        return PassResult.of(notes)
