"""A tactic for each node of a plan, and which nodes are chained: what decides an engine's speed."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from smelt.backends import Refusal
from smelt.builder._float32_fallback import (
    find_float32_layers,
    is_small,
    report_float32_layers,
    rounded_inputs,
)
from smelt.builder._options import MIXED, PRECISIONS, ROUNDING_ERRORS
from smelt.builder._plan_recipe import PlanRecipe
from smelt.builder._toolchain import FusedPairAlternatives, TunedGraph, TuningRequest
from smelt.builder._workspace import workspace_bytes
from smelt.errors import BuildError, sanitize_name
from smelt.tuner import Candidates, FusedPairTimings, choose, propose_fused_pairs
from smelt.types import DType, bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends import BuiltPlan, Tactic
    from smelt.builder._optimization_profiles import SymbolRanges
    from smelt.builder._options import BuildOptions, Progress, TuningEffort
    from smelt.builder._plan_recipe import Symbols
    from smelt.builder._toolchain import Toolchain
    from smelt.ir import Graph, Node
    from smelt.tuner import Choice, EquivalentPairs, PairProposal, Timer, TimingCache
    from smelt.types import Guard

_LOG = logging.getLogger(__name__)
_PORTABLE_REFUSAL: Final = "portable=True does not allow reference steps, which run in Python"


@dataclass(slots=True)
class PlanState:
    """One plan on its way."""

    box: SymbolRanges
    """The symbols that stay open."""
    fixed: dict[str, int]
    """The symbols that the plan fixes."""
    runtime_symbols: SymbolRanges
    """The symbols that a run determines."""
    graph: Graph
    report: dict[str, Any]
    guards: tuple[Guard, ...] = ()
    """What the inference of the network assumed, before passes changed it and since."""
    choice: Choice | None = None
    assembled: BuiltPlan | None = None
    refusals: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """For each node by name, which families cannot run it and why; for the inspector."""
    workspace_bytes: int = 0
    """Scratch memory of the step that needs most."""
    float32_layers: frozenset[str] = frozenset()
    """Names of the nodes that stay in float32 where others are stored in 16 bits."""

    @property
    def symbols(self) -> Symbols:
        """Every symbol with its smallest and largest value: open, fixed, and found by the run."""
        symbols = [(name, b.low, b.high) for name, b in sorted(self.box.items())]
        symbols += [(name, value, value) for name, value in sorted(self.fixed.items())]
        symbols += [(name, b.low, b.high) for name, b in sorted(self.runtime_symbols.items())]
        return tuple(symbols)

    @property
    def program(self) -> PlanRecipe:
        """What the plan is assembled from."""
        assert self.choice is not None  # noqa: S101  (chosen before anything is assembled)
        return PlanRecipe(self.graph, self.choice.tactics, self.symbols, self.guards)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The smallest and the largest value of each open symbol, and of those a run finds."""
        return {n: (b.low, b.high) for n, b in (self.box | self.runtime_symbols).items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The symbol values to tune for."""
        return {n: b.best for n, b in (self.box | self.runtime_symbols).items()}

    @property
    def smallest_batch_sizes(self) -> dict[str, int]:
        """The same for as few images as there may be, one at least: all are computed alike."""
        firsts = {str(v.tensor.shape[0]) for v in self.graph.inputs if v.tensor.rank}
        least = {n: min(max(1, b.low), b.high) for n, b in self.box.items() if firsts == {n}}
        smallest_batch_sizes = self.sizes | least
        return self.sizes if self.broken_guard(smallest_batch_sizes) else smallest_batch_sizes

    def broken_guard(self, sizes: Mapping[str, int]) -> Guard | None:
        """A guard that fails at symbol values: kernels must not run at these."""
        own = (guard for node in self.graph.nodes for guard in node.guards)
        return next((g for g in (*self.guards, *own) if not g.holds({**sizes, **self.fixed})), None)


@dataclass(slots=True)
class TacticSelector:
    """Chooses for one plan."""

    plan: PlanState
    tools: Toolchain
    options: BuildOptions
    effort: TuningEffort | None
    deadline: float
    """When tuning must be done, in the time of ``time.perf_counter``."""
    timings: TimingCache
    progress: Progress
    known: dict[Node, Candidates] = field(default_factory=dict["Node", Candidates])
    """What can run each node, by ``node``."""
    nodes: list[Node] = field(default_factory=list["Node"])
    """Those that are known: an identity is only good while its owner lives."""

    def run(self) -> None:
        """Put the choice into the plan, and the chains that pay into its graph."""
        plan, started = self.plan, time.perf_counter()
        self._find_float32_layers()
        timer = self.tools.timer(self._tuning(plan.graph))
        proposals = self._proposals(timer)
        draft, others = self._draft(plan.graph, timer), None
        if self._keep_rejected_in_float32(timer):
            proposals = self._proposals(timer)
            draft = self._draft(plan.graph, timer)
        self._warn_of_rejected(draft.choice, timer)
        if proposals:
            chains = FusedPairTimings(plan.graph, proposals, self._tactics, timer)
            others = FusedPairAlternatives(
                chains, lambda kinds: self._chained(chains, kinds, draft.choice)
            )
        best = self.tools.tune_in_network(draft, others, time.perf_counter() - started)
        if best.report is not None:
            plan.report["passes"] += best.report.to_json()["passes"]
        plan.graph, plan.choice = best.tuning.graph, best.choice
        for node in plan.graph.nodes:
            size = self._workspace(node, best.choice.tactics[node])
            plan.workspace_bytes = max(plan.workspace_bytes, size)
            self._tactics(node)
            plan.refusals[node.name] = [str(r) for r in self.known[node].refusals]

    def _proposals(self, timer: Timer) -> list[PairProposal]:
        """Chains that may pay, compiled together with all nodes."""
        graph = self.plan.graph
        proposals = propose_fused_pairs(graph, self._may_chain, self._tactics)
        if proposals:
            timer.announce([(node, self._tactics(node)) for node in graph.nodes])
            timer.announce([(one.chain, one.tactics) for one in proposals])
        return proposals

    def _find_float32_layers(self) -> None:
        """Find the layers without whose float32 answers err by more than is allowed."""
        plan, asked = self.plan, self.options
        most = asked.rounding_error or ROUNDING_ERRORS.get(asked.precision, 1.0)
        storage = self.tools.storage(PRECISIONS[asked.precision])
        if (
            not self.tools.supports_mixed_precision
            or asked.precision not in MIXED
            or storage is DType.FLOAT32
        ):
            return
        if most >= 1 or not (
            asked.rounding_error or is_small(plan.graph, plan.smallest_batch_sizes)
        ):
            return
        rounded = {node.name: self._rounded(node) for node in plan.graph.nodes}
        try:
            found = find_float32_layers(
                plan.graph, rounded, storage, plan.smallest_batch_sizes, most
            )
        except BuildError as error:
            level = logging.WARNING if asked.rounding_error else logging.DEBUG
            _LOG.log(level, "rounding_error= (`--rounding-error`) changes nothing: %s", error)
            return
        if found is not None:
            plan.float32_layers = found.names
            plan.report["passes"].append(report_float32_layers(found, plan.graph, most, storage))
            self.known.clear()
            self.nodes.clear()

    def _keep_rejected_in_float32(self, timer: Timer) -> bool:
        """Keep nodes in float32 whose candidates in 16 bits are all wrong; say if there are any."""
        plan, asked = self.plan, self.options
        storage = self.tools.storage(PRECISIONS[asked.precision])
        if (
            not self.tools.supports_mixed_precision
            or asked.precision not in MIXED
            or storage is DType.FLOAT32
        ):
            return False
        found = {
            n.name: reason for n in plan.graph.nodes if (reason := timer.wrong_result_reason(n))
        }
        fresh = found.keys() - plan.float32_layers
        for name in sorted(fresh):
            detail = "%s stays in float32: in %s every candidate kernel gave wrong results; %s"
            _LOG.warning(detail, sanitize_name(name), storage.value, found[name])
        if fresh:
            plan.float32_layers |= fresh
            self.known.clear()
            self.nodes.clear()
        return bool(fresh)

    def _warn_of_rejected(self, choice: Choice, timer: Timer) -> None:
        """Warn of nodes of which all candidates that were tried are wrong."""
        for node in self.plan.graph.nodes:
            if reason := timer.wrong_result_reason(node):
                is_slow = choice.tactics[node].is_reference
                does = "runs on the host, which is slow" if is_slow else "runs untried"
                _LOG.warning(
                    "%s %s: every candidate kernel gave wrong results; %s",
                    sanitize_name(node.name),
                    does,
                    reason,
                )

    def _rounded(self, node: Node) -> tuple[bool, ...]:
        self._tactics(node)
        return rounded_inputs(node, self.known[node], self.tools.backend)

    def _may_chain(self, first: Node, second: Node) -> bool:
        """Whether two nodes may be one launch: not if one of them stays in float32."""
        is_kept = not self.plan.float32_layers.isdisjoint((first.name, second.name))
        return not is_kept and self.tools.backend.can_fuse_pair(first, second)

    def _draft(self, graph: Graph, timer: Timer) -> TunedGraph:
        """The choice for a graph that times and estimates give."""
        choice: Choice | None = None
        for node in graph.nodes:
            self._tactics(node)
        while choice is None or self._drop_over_workspace(graph, choice):
            choice = choose(
                graph,
                self.known,
                timer,
                self.plan.sizes,
                lambda done, total: self.progress("tune", done, total),
            )
        return TunedGraph(self._tuning(graph), choice)

    def _chained(
        self, chains: FusedPairTimings, kinds: Sequence[EquivalentPairs], held: Choice
    ) -> TunedGraph:
        """The choice where chains of some kinds are formed, and else all stays as it is held."""
        graph, report = chains.graph_with(kinds)
        return TunedGraph(self._tuning(graph), chains.choice(graph, held), report)

    def _tactics(self, node: Node) -> tuple[Tactic, ...]:
        """What can run a node within the options."""
        if node not in self.known:
            self.known[node] = self._candidates(node)
            self.nodes.append(node)
        return self.known[node].tactics

    def _candidates(self, node: Node) -> Candidates:
        tools = self.tools
        storage = tools.storage(PRECISIONS[self.options.precision])
        tactics, refusals = tools.backend.mixed_precision_candidates(
            node, tools.target, storage, self.plan.float32_layers
        )
        if self.options.portable:
            refusals += [Refusal(t.family, _PORTABLE_REFUSAL) for t in tactics if t.is_reference]
            tactics = [t for t in tactics if not t.is_reference]
        small = [t for t in tactics if self._fits(t)]
        refusals += [
            Refusal(t.family, f"{t} needs {t.workspace_bytes} bytes of workspace")
            for t in tactics
            if t not in small
        ]
        return Candidates(tuple(small), tuple(refusals))

    def _tuning(self, graph: Graph) -> TuningRequest:
        most = self.options.max_workspace_bytes
        return TuningRequest(
            graph,
            self.plan.symbols,
            self.plan.sizes,
            self.effort,
            self.deadline,
            self.timings,
            lambda node, tactic: self._workspace(node, tactic) <= most,
            lambda done, total: self.progress("measure", done, total),
        )

    def _drop_over_workspace(self, graph: Graph, choice: Choice) -> bool:
        """Drop what was chosen and needs too much with its workers' memory; say if anything did."""
        found = False
        for node in graph.nodes:
            tactic, known = choice.tactics[node], self.known[node]
            size = self._workspace(node, tactic)
            if size > self.options.max_workspace_bytes:
                found = True
                reason = (
                    f"{tactic} needs {size} bytes of workspace, including the memory of its workers"
                )
                self.known[node] = Candidates(
                    tuple(t for t in known.tactics if t != tactic),
                    (*known.refusals, Refusal(tactic.family, reason)),
                )
        return found

    def _workspace(self, node: Node, tactic: Tactic) -> int:
        tools = self.tools
        return workspace_bytes(tools.backend, node, tactic, self.plan.ranges, tools.workers)

    def _fits(self, tactic: Tactic) -> bool:
        needed = bounds_of(tactic.workspace_bytes, self.plan.ranges)[1]
        return needed <= self.options.max_workspace_bytes
