"""Tactic selection: chooses a tactic for each node of a plan, and the pairs to fuse."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from functools import partial
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
from smelt.errors import Argument, BuildError, sanitize_name
from smelt.passes import assign_precision
from smelt.tuner import (
    Candidates,
    FusedPairTimings,
    choose,
    is_not_timed,
    lower_isolated_node,
    propose_fused_pairs,
)
from smelt.types import DType, bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends import BuiltPlan, Tactic
    from smelt.builder._optimization_profiles import SymbolRanges
    from smelt.builder._options import BuildOptions, ProgressCallback, TuningEffort
    from smelt.builder._plan_recipe import Symbols
    from smelt.builder._toolchain import Toolchain
    from smelt.ir import Graph, Node
    from smelt.tuner import EquivalentPairs, PairProposal, TacticChoice, Timer, TimingCache
    from smelt.types import Guard

_LOG = logging.getLogger(__name__)
_SELF_CONTAINED: Final = Argument("self_contained", value=True)
_SELF_CONTAINED_REFUSAL: Final = (
    f"{_SELF_CONTAINED} does not allow reference steps, which run in Python"
)


@dataclass(slots=True)
class PlanBuildState:
    """The state of one plan during a build."""

    profile: SymbolRanges
    """Ranges of the symbols that differ between runs."""
    fixed: dict[str, int]
    """Values of the symbols that the plan fixes."""
    runtime_symbols: SymbolRanges
    """Ranges of the symbols that each run determines."""
    graph: Graph
    report: dict[str, Any]
    guards: tuple[Guard, ...] = ()
    """Guards of the network before the passes and after each of them."""
    choice: TacticChoice | None = None
    assembled: BuiltPlan | None = None
    refusals: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """For each node name, which families cannot run the node, and why; for the inspector."""
    placed: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """For each partition, by name, why the devices before its own cannot run its layers."""
    workspace_bytes: int = 0
    """Scratch memory in bytes of the step that needs most."""
    float32_layers: frozenset[str] = frozenset()
    """Names of the nodes that stay in float32 in a 16-bit build."""

    @property
    def symbols(self) -> Symbols:
        """All symbols (open, fixed and runtime) with their smallest and largest value."""
        symbols = [(name, b.low, b.high) for name, b in sorted(self.profile.items())]
        symbols += [(name, value, value) for name, value in sorted(self.fixed.items())]
        symbols += [(name, b.low, b.high) for name, b in sorted(self.runtime_symbols.items())]
        return tuple(symbols)

    @property
    def program(self) -> PlanRecipe:
        """The recipe of the plan."""
        assert self.choice is not None  # noqa: S101  (set by the tactic selector)
        return PlanRecipe(self.graph, self.choice.tactics, self.symbols, self.guards)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The smallest and largest value of each open symbol and each runtime symbol."""
        return {n: (b.low, b.high) for n, b in (self.profile | self.runtime_symbols).items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The symbol values to tune for."""
        return {n: b.best for n, b in (self.profile | self.runtime_symbols).items()}

    @property
    def smallest_batch_sizes(self) -> dict[str, int]:
        """The same values with the smallest batch, at least 1; accuracy does not depend on it."""
        batch_symbols = {str(v.tensor.shape[0]) for v in self.graph.inputs if v.tensor.rank}
        smallest = {
            n: min(max(1, b.low), b.high) for n, b in self.profile.items() if batch_symbols == {n}
        }
        smallest_batch_sizes = self.sizes | smallest
        return self.sizes if self.broken_guard(smallest_batch_sizes) else smallest_batch_sizes

    def broken_guard(self, sizes: Mapping[str, int]) -> Guard | None:
        """Return a guard that does not hold at symbol values; kernels must not run at these."""
        node_guards = (guard for node in self.graph.nodes for guard in node.guards)
        values = {**sizes, **self.fixed}
        return next((g for g in (*self.guards, *node_guards) if not g.holds(values)), None)


@dataclass(slots=True)
class TacticSelector:
    """Chooses the tactics of one plan."""

    plan: PlanBuildState
    tools: Toolchain
    options: BuildOptions
    effort: TuningEffort | None
    deadline: float
    """Time of ``time.perf_counter`` in seconds at which tuning must end."""
    timings: TimingCache
    progress: ProgressCallback
    candidates: dict[Node, Candidates] = field(default_factory=dict["Node", Candidates])
    """Candidates of each node that has been examined."""

    def run(self) -> None:
        """Store the tactics in the plan, and fuse beneficial pairs in its graph."""
        plan, start = self.plan, time.perf_counter()
        self._assign_precision()
        self._find_float32_layers()
        timer = self.tools.timer(self._tuning(plan.graph))
        proposals = self._proposals(timer)
        draft = self._draft(plan.graph, timer)
        if self._keep_rejected_in_float32(timer):
            proposals = self._proposals(timer)
            draft = self._draft(plan.graph, timer)
        self._warn_of_rejected(draft.choice, timer)
        if proposals:
            chains = FusedPairTimings(plan.graph, proposals, self._tactics, timer)
            form = partial(self._draft_with_pairs, chains, draft.choice)
            draft = replace(draft, alternatives=FusedPairAlternatives(chains, form))
        tuned = self.tools.tune_in_network(draft, time.perf_counter() - start)
        if tuned.report is not None:
            plan.report["passes"] += tuned.report.to_json()["passes"]
        plan.graph, plan.choice = tuned.tuning.graph, tuned.choice
        for node in plan.graph.nodes:
            size = self._workspace(node, tuned.choice.tactics[node])
            plan.workspace_bytes = max(plan.workspace_bytes, size)
            self._tactics(node)
            refusals = [str(r) for r in self.candidates[node].refusals]
            plan.refusals[node.name] = plan.placed.get(node.name, refusals)

    def _proposals(self, timer: Timer) -> list[PairProposal]:
        """Return the pairs that may be beneficial, and announce all candidates to the timer."""
        graph = self.plan.graph
        proposals = propose_fused_pairs(graph, self.tools.backend.can_fuse_pair, self._tactics)
        if proposals:
            timer.announce([(node, self._tactics(node)) for node in graph.nodes])
            timer.announce([(proposal.chain, proposal.tactics) for proposal in proposals])
        return proposals

    def _find_float32_layers(self) -> None:
        """Find the layers that must stay in float32 so that the outputs' error is allowed."""
        plan, options = self.plan, self.options
        max_error = options.max_rounding_error or ROUNDING_ERRORS.get(options.precision, 1.0)
        storage = self._narrow_storage()
        if (
            storage is None
            or max_error >= 1
            or not (options.max_rounding_error or is_small(plan.graph, plan.smallest_batch_sizes))
        ):
            return
        rounded_inputs_by_node = {node.name: self._rounded(node) for node in plan.graph.nodes}
        try:
            float32_layers = find_float32_layers(
                plan.graph, rounded_inputs_by_node, storage, plan.smallest_batch_sizes, max_error
            )
        except BuildError as error:
            level = logging.WARNING if options.max_rounding_error else logging.DEBUG
            _LOG.log(level, "max_rounding_error= (`--max-rounding-error`) has no effect: %s", error)
            return
        if float32_layers is not None:
            plan.float32_layers = float32_layers.names
            plan.report["passes"].append(
                report_float32_layers(float32_layers, plan.graph, max_error, storage)
            )
            self._assign_precision()

    def _assign_precision(self) -> None:
        """Set the precision of all nodes, on which their candidates depend."""
        plan, backend = self.plan, self.tools.backend
        assign_precision(
            plan.graph.nodes,
            self._storage,
            plan.float32_layers,
            supports_mixed_precision=backend.supports_mixed_precision,
        )
        self.candidates.clear()

    @property
    def _storage(self) -> DType:
        """The storage type of float32 tensors."""
        return self.tools.storage(PRECISIONS[self.options.precision])

    def _narrow_storage(self) -> DType | None:
        """Return the 16-bit storage type of a build with layers that may stay in float32."""
        storage, backend = self._storage, self.tools.backend
        is_mixed = backend.supports_mixed_precision and self.options.precision in MIXED
        return storage if is_mixed and storage is not DType.FLOAT32 else None

    def _keep_rejected_in_float32(self, timer: Timer) -> bool:
        """Keep nodes in float32 whose 16-bit candidates were all rejected.

        Returns whether there are such nodes that were not in float32 before.
        """
        plan, storage = self.plan, self._narrow_storage()
        if storage is None:
            return False
        reasons = {
            n.name: reason for n in plan.graph.nodes if (reason := timer.wrong_result_reason(n))
        }
        new_names = reasons.keys() - plan.float32_layers
        for name in sorted(new_names):
            message = "%s stays in float32: in %s every candidate kernel was rejected; %s"
            _LOG.warning(message, sanitize_name(name), storage.value, reasons[name])
        if new_names:
            plan.float32_layers |= new_names
            self._assign_precision()
        return bool(new_names)

    def _warn_of_rejected(self, choice: TacticChoice, timer: Timer) -> None:
        """Warn about nodes all of whose timed candidates were rejected."""
        for node in self.plan.graph.nodes:
            if reason := timer.wrong_result_reason(node):
                is_slow = choice.tactics[node].is_host_step
                consequence = (
                    "runs on the host, which is slow" if is_slow else "runs an unchecked kernel"
                )
                _LOG.warning(
                    "%s %s: every candidate kernel was rejected; %s",
                    sanitize_name(node.name),
                    consequence,
                    reason,
                )

    def _rounded(self, node: Node) -> tuple[bool, ...]:
        self._tactics(node)
        return rounded_inputs(node, self.candidates[node], self.tools.backend)

    def _draft(self, graph: Graph, timer: Timer) -> TunedGraph:
        """Choose tactics for a graph by isolated times and estimates."""
        choice: TacticChoice | None = None
        for node in graph.nodes:
            self._tactics(node)
        while choice is None or self._drop_over_workspace(graph, choice):
            choice = choose(
                graph,
                self.candidates,
                timer,
                self.plan.sizes,
                lambda done, total: self.progress("tune", done, total),
            )
        return TunedGraph(self._tuning(graph), choice)

    def _draft_with_pairs(
        self, chains: FusedPairTimings, current: TacticChoice, kinds: Sequence[EquivalentPairs]
    ) -> TunedGraph:
        """The choice where chains of some kinds are formed, and else all stays as it is held."""
        graph, report = chains.graph_with(kinds)
        return TunedGraph(self._tuning(graph), chains.choice(graph, current), report)

    def _tactics(self, node: Node) -> tuple[Tactic, ...]:
        """Return the tactics of a node that the options allow."""
        if node not in self.candidates:
            self.candidates[node] = self._find_candidates(node)
        return self.candidates[node].tactics

    def _find_candidates(self, node: Node) -> Candidates:
        tools = self.tools
        tactics, refusals = tools.backend.candidates(node, tools.target)
        if self.options.self_contained:
            references = [t for t in tactics if tools.backend.family(t.family).is_reference]
            tactics = [t for t in tactics if t not in references]
            refusals += [
                Refusal(t.family, _SELF_CONTAINED_REFUSAL, (_SELF_CONTAINED,)) for t in references
            ]
        max_bytes = self.options.max_workspace_bytes
        fitting = [t for t in tactics if self._shared_workspace(t) <= max_bytes]
        refusals += [
            self._over_workspace(t, self._shared_workspace(t)) for t in tactics if t not in fitting
        ]
        return Candidates(tuple(fitting), tuple(refusals))

    def _tuning(self, graph: Graph) -> TuningRequest:
        """Return the tuning request for a graph of this plan."""
        max_bytes = self.options.max_workspace_bytes
        return TuningRequest(
            graph,
            self.plan.symbols,
            self.plan.sizes,
            self.effort,
            self.deadline,
            self.timings,
            lambda node, tactic: self._workspace(node, tactic) <= max_bytes,
            lambda done, total: self.progress("measure", done, total),
        )

    def _drop_over_workspace(self, graph: Graph, choice: TacticChoice) -> bool:
        """Drop chosen tactics that exceed the workspace with their workers' memory.

        Returns whether a tactic was dropped.
        """
        dropped = False
        for node in graph.nodes:
            tactic, node_candidates = choice.tactics[node], self.candidates[node]
            size = self._workspace(node, tactic)
            if size > self.options.max_workspace_bytes:
                dropped = True
                self.candidates[node] = Candidates(
                    tuple(t for t in node_candidates.tactics if t != tactic),
                    (
                        *node_candidates.refusals,
                        self._over_workspace(tactic, size, " (with that of its worker threads)"),
                    ),
                )
        return dropped

    def _workspace(self, node: Node, tactic: Tactic) -> int:
        """Return the scratch memory in bytes that a step needs in addition to its tensors.

        The size includes the memory that its launches share, and the memory of each worker.
        """
        shared, workers = self._shared_workspace(tactic), self.tools.workers
        if is_not_timed(tactic) or not workers:
            return shared
        largest = {name: high for name, (_, high) in self.plan.ranges.items()}
        isolated = lower_isolated_node(self.tools.backend, node, tactic, largest)
        return shared + workers * isolated.scratch_bytes

    def _over_workspace(self, tactic: Tactic, size: int, detail: str = "") -> Refusal:
        limit = Argument("max_workspace_bytes", self.options.max_workspace_bytes)
        reason = f"{tactic} needs {size} bytes of workspace{detail}, more than {limit}"
        return Refusal(tactic.family, reason, (Argument(limit.name),))

    def _shared_workspace(self, tactic: Tactic) -> int:
        """Return the memory in bytes that the launches of a tactic share."""
        return bounds_of(tactic.workspace_bytes, self.plan.ranges)[1]
