"""Final tactic selection by timing candidates in the whole network.

As an isolated node, the fastest candidate may be one with large weights, which stay in the cache.
In a network they are read from memory in each run and evict data of other nodes. The best
candidates of each node are therefore timed in interleaved runs of whole plans. A candidate is
judged by the time from shortly before its node to shortly after it, so that its effect on the
neighbours counts. One plan tries candidates of many nodes that are not near each other.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from smelt.backends import constant_bytes
from smelt.engine import VERSION
from smelt.tuner._benchmark_timer import is_not_timed, node_text, tactic_text
from smelt.tuner._in_network_trial import graph_of
from smelt.types import evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends import Backend, Tactic
    from smelt.ir import Graph, Node
    from smelt.tuner._in_network_trial import Assignment
    from smelt.tuner._tactic_choice import TacticChoice
    from smelt.tuner._timing_cache import TimingCache

_LOG = logging.getLogger(__name__)
_NODES_JUDGED_BEFORE: Final = 1
"""Number of preceding nodes in a judged span: they prefetch the weights and write the input. Chosen
without a measurement."""
_NODES_JUDGED_AFTER: Final = 2
"""Number of following nodes in a judged span: the node may have evicted what they read. Chosen
without a measurement."""
_NEGLIGIBLE: Final = 0.003
"""Nodes that take a smaller share of the total time keep their tactics. Chosen without a
measurement."""
_MIN_RUNS: Final = 3
"""Minimum number of runs for which a trial plan is worth its preparation. Chosen without a
measurement."""
_SHORT_PLAN_PASS_FACTOR: Final = 3
"""Factor on the number of passes for short plans. MiniLM at batch 1 takes 96.6 µs after one pass
and 92.1 after three on an H200 (docs/lab/tuning-on-gpus.md)."""
_TIE_TOLERANCE: Final = 0.01
"""Relative difference up to which times count as equal; the tactic that touches less memory wins.
Chosen without a measurement."""


class PlanTimer(Protocol):
    """Runs plans alternately and times them; implemented by `InNetworkTrial`."""

    times_whole_plan: bool
    """Whether only whole plans can be timed because launches overlap. Each candidate then has a
    plan of its own and is judged by the time of that plan."""
    prepare_seconds: float
    """Seconds that it takes to prepare a plan."""

    def milliseconds(
        self, assignments: Sequence[Assignment], *, runs: int, max_seconds: float
    ) -> list[NDArray[np.float64]]:
        """Return an array of shape (runs, nodes + 1) in milliseconds for each assignment.

        It holds the end time of each node, then that of the plan.
        """
        ...


@dataclass(frozen=True, slots=True)
class InNetworkEffort:
    """Limits on how much the in-network tuner tries."""

    extra_candidates: int = 3
    """Number of candidates per node besides the current tactic."""
    max_slowdown: float = 2.0
    """Maximum ratio of a candidate's isolated time to the fastest isolated time."""
    passes: int = 1
    """Number of passes over the network."""
    runs: int = 8
    """Number of runs of each plan in a pass."""
    seconds: float = 4.0
    """Time limit in seconds for the runs of a pass."""
    short_plan_seconds: float = 0.0
    """Plans that take less than this get `_SHORT_PLAN_PASS_FACTOR` times the passes. The best
    tactic of a node depends on the tactics of others, in particular where launches overlap."""
    change_subsets: int = 1
    """Number of subsets of a pass's changes that are tried: all changes, then the half that gains
    most, and so on. Changes that are better one by one may be worse together, and the smallest
    gains are the most likely to be noise."""
    min_plan_seconds: float = 1e-4
    """Plans that take less seconds are not tuned: all their weights stay in the cache."""


@dataclass(slots=True)
class _NodeGroup:
    """Nodes that compute the same and get the same tactic."""

    text: str
    """Unique key: what the nodes compute and the position of the first node."""
    nodes: list[Node]
    tactics: list[Tactic]
    """Candidates, the current tactic first."""
    bytes_touched: list[int] = field(default_factory=list[int])
    """Bytes of packed constants and workspace of each candidate."""
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Spans of the plan by whose time candidates are judged: pairs of node positions, the first
    exclusive and the second inclusive."""


@dataclass(slots=True)
class _TrialPlan:
    """A plan to try: the current assignment with changed tactics of groups far from each other."""

    assignment: Assignment
    judged_nodes: set[int] = field(default_factory=set[int])
    """Positions of nodes that lie in judged spans."""


@dataclass(eq=False)
class InNetworkTuner:
    """Selects tactics by timing candidates in whole plans; keeps the times in the timing cache."""

    graph: Graph
    """Optimised graph with inferred types."""
    choice: TacticChoice
    """Choice by isolated times; `run` updates it."""
    plan_timer: PlanTimer
    """Runs and times plans."""
    backend: Backend[Any]
    """Provides the kernel families of the tactics."""
    cache: TimingCache
    """Timing cache that is read before and updated after each measurement."""
    _: KW_ONLY
    effort: InNetworkEffort
    """Limits on how much to try."""
    where: str
    """Key of what times depend on besides the graph: machine, threads."""
    sizes: Mapping[str, int]
    """Symbol values to tune for."""
    fits_workspace: Callable[[Node, Tactic], bool] = lambda _node, _tactic: True
    """Returns whether a tactic may be considered for a node."""
    deadline: float = math.inf
    """Time of ``time.perf_counter`` at which to be done."""
    compile_seconds: float = 0.0
    """Seconds to reserve for compiling the candidates once more, as part of the plan."""
    progress: Callable[[int, int], None] = lambda _done, _total: None
    """Called with the number of rounds that are done and the total."""

    def __post_init__(self) -> None:
        self.graphs = [self.graph]
        """Equivalent graphs; each assignment is of one of them."""
        tactics = self.choice.tactics
        self.timed = [i for i, n in enumerate(self.graph.nodes) if not is_not_timed(tactics[n])]
        """Positions of the nodes that are timed: neither views nor references."""

    def run(self) -> None:
        """Tune the plan; store the best tactics and their measured times in the choice."""
        first = dict(self.choice.tactics)
        seconds = sum(self._isolated_seconds(first).values())
        if seconds < self.effort.min_plan_seconds:
            return
        is_short = seconds < self.effort.short_plan_seconds
        rounds = self.effort.passes * (_SHORT_PLAN_PASS_FACTOR if is_short else 1) + 1
        self.progress(0, rounds)
        best = self._fastest([first, *self._uniform_launch_variants(first)])
        for number in range(1, rounds):
            self.progress(number, rounds)
            improved = self._fastest([*self._improved(best), best])
            if improved is best:
                break
            best = improved
        # A plan that was right when it was first timed and was rejected later has a race; the
        # initial assignment starts no launch early.
        self.choice.tactics = first if self._is_rejected(best) else best
        self.progress(rounds, rounds)

    def _uniform_launch_variants(self, assignment: Assignment) -> list[Assignment]:
        """Return the assignment with the same launch variant on all nodes, for each variant."""
        if self._seconds_left() <= 0:
            return []
        variants = {k: self.backend.launch_variants(tactic) for k, tactic in assignment.items()}
        count = max(map(len, variants.values()), default=0)
        uniform = [
            {k: variants[k][number] if variants[k] else tactic for k, tactic in assignment.items()}
            for number in range(count)
        ]
        return [variant for variant in uniform if variant != assignment]

    # ---- one pass

    def _improved(self, assignment: Assignment) -> list[Assignment]:
        """Return the assignment with the tactics that are faster in its context, and with subsets.

        The list is empty if there is no time to measure or no tactic is faster.
        """
        groups = self._node_groups(assignment)
        context = self._context(assignment)
        keys = {
            (group.text, tactic): f"{context} | {group.text} | {tactic_text(tactic)}"
            for group in groups
            for tactic in group.tactics
        }
        if any(self.cache.get(keys[group.text, group.tactics[0]]) is None for group in groups):
            max_plans = self._max_trial_plans(assignment)
            if max_plans < 1:
                return []
            measured = self._measure_groups(groups, assignment, max_plans)
            if self._is_rejected(assignment):
                return []
            for candidate, seconds in measured.items():
                self.cache.put(keys[candidate], seconds)
        gains: list[tuple[float, Assignment]] = []
        for group in groups:
            cached = [self.cache.get(keys[group.text, tactic]) for tactic in group.tactics]
            times = [math.inf if seconds is None else seconds for seconds in cached]
            least = _best_index(times, group.bytes_touched)
            sorted_times = sorted(
                (seconds, str(tactic))
                for seconds, tactic in zip(times, group.tactics, strict=True)
                if math.isfinite(seconds)
            )
            for node in group.nodes:
                self.choice.in_network_times[node.name] = [
                    (text, seconds) for seconds, text in sorted_times
                ]
            if least:
                gain = (times[0] - times[least]) * len(group.nodes)
                gains.append((gain, dict.fromkeys(group.nodes, group.tactics[least])))
        return self._subsets(assignment, gains)

    def _subsets(
        self, assignment: Assignment, gains: list[tuple[float, Assignment]]
    ) -> list[Assignment]:
        """Return the assignment with all changes, with the half that gains most, and so on."""
        gains.sort(key=lambda change: -change[0])
        subsets: list[Assignment] = []
        for halvings in range(self.effort.change_subsets):
            if count := len(gains) >> halvings:
                subsets.append(dict(assignment))
                for _, change in gains[:count]:
                    subsets[-1] |= change
        return subsets

    def _max_trial_plans(self, assignment: Assignment) -> int:
        """Return the number of trial plans that fit into the time besides the current plan."""
        remaining = max(0.0, self.deadline - time.perf_counter() - self.compile_seconds)
        plan_seconds = sum(self._isolated_seconds(assignment).values())
        seconds_per_plan = self.plan_timer.prepare_seconds + _MIN_RUNS * max(plan_seconds, 1e-6)
        return int(min(self.effort.seconds, remaining) / seconds_per_plan) - 1

    def _isolated_seconds(self, assignment: Assignment) -> dict[Node, float]:
        """Return the isolated seconds of each timed node."""
        node_seconds: dict[Node, float] = {}
        for node in (self.graph.nodes[i] for i in self.timed):
            times, tactic = dict(self.choice.candidate_times[node]), assignment[node]
            variants = self.backend.launch_variants(tactic) or (tactic,)
            node_seconds[node] = max((times.get(variant, 0.0) for variant in variants), default=0.0)
        return node_seconds

    def _measure_groups(
        self, groups: Sequence[_NodeGroup], assignment: Assignment, max_plans: int
    ) -> dict[tuple[str, Tactic], float]:
        """Measure as many candidates as fit into ``max_plans``; return seconds by group and tactic.

        The seconds of a candidate include its effect on the nodes in the judged spans.
        """
        trial_plans, plan_of_candidate = _schedule_trials(groups, assignment, self.timed, max_plans)
        assignments = [assignment, *(t.assignment for t in trial_plans)]
        runs = self._milliseconds(assignments, self.effort.runs)
        if not np.isfinite(runs[0]).all():
            return {}
        position = {node: i for i, node in enumerate(self.graph.nodes)}

        def seconds_unchanged(first: int, last: int) -> float:
            """Return the milliseconds of a span over all plans that change nothing in it."""
            judged = {i for i in self.timed if first < i <= last}
            unchanged_runs = [
                r
                for r, t in zip(runs[1:], trial_plans, strict=True)
                if not t.judged_nodes & judged and np.isfinite(r).all()
            ]
            return _median(np.concatenate([runs[0], *unchanged_runs]), first, last)

        seconds: dict[tuple[str, Tactic], float] = {}
        for group in groups:
            own_ms = sum(seconds_unchanged(i - 1, i) for i in (position[n] for n in group.nodes))
            unchanged_ms = sum(seconds_unchanged(*span) for span in group.spans)
            seconds[group.text, group.tactics[0]] = own_ms / len(group.nodes) / 1e3
            for tactic in group.tactics[1:]:
                if (group.text, tactic) not in plan_of_candidate:
                    continue
                times = runs[1 + plan_of_candidate[group.text, tactic]]
                if not np.isfinite(times).all():
                    continue
                changed_ms = sum(_median(times, *span) for span in group.spans)
                attributed_ms = max(0.0, own_ms + changed_ms - unchanged_ms) / len(group.nodes)
                seconds[group.text, tactic] = attributed_ms / 1e3
        return seconds

    def _milliseconds(
        self, assignments: Sequence[Assignment], runs: int
    ) -> list[NDArray[np.float64]]:
        """Time plans, and record those with infinite times as rejected in the timing cache."""
        left = self._seconds_left()
        times = self.plan_timer.milliseconds(assignments, runs=runs, max_seconds=left)
        for assignment, plan_times in zip(assignments, times, strict=True):
            if not np.isfinite(plan_times).all():
                self.cache.put(f"{self._context(assignment)} | rejected", 0.0)
        return times

    def _is_rejected(self, assignment: Assignment) -> bool:
        """Return whether a plan is recorded as not running or as nondeterministic."""
        return self.cache.get(f"{self._context(assignment)} | rejected") is not None

    def _seconds_left(self) -> float:
        return min(self.effort.seconds, self.deadline - time.perf_counter())

    # ---- candidates

    def _node_groups(self, assignment: Assignment) -> list[_NodeGroup]:
        """Group nodes with equal computation and candidates; skip those that take little time."""
        isolated = self._isolated_seconds(assignment)
        threshold = _NEGLIGIBLE * sum(isolated.values())
        groups: dict[object, _NodeGroup] = {}
        for i in self.timed:
            node = self.graph.nodes[i]
            if isolated[node] < threshold:
                continue
            tactics = self._candidates_of(node, assignment[node])
            if len(tactics) > 1:
                text = node_text(node)
                group = _NodeGroup(f"{text} at {i}", [], tactics)
                groups.setdefault((text, *tactics), group).nodes.append(node)
        for group in groups.values():
            group.bytes_touched = [self._bytes(group.nodes[0], t) for t in group.tactics]
            group.spans = self._spans(group)
        return list(groups.values())

    def _candidates_of(self, node: Node, current: Tactic) -> list[Tactic]:
        """Return the current tactic, its launch variants, and the fastest others of its formats."""
        same_formats = [
            (tactic, seconds)
            for tactic, seconds in self.choice.candidate_times[node]
            if tactic.formats == current.formats and not is_not_timed(tactic)
        ]
        limit = (
            min((seconds for _, seconds in same_formats), default=0.0) * self.effort.max_slowdown
        )
        variants = self.backend.launch_variants(current) or (current,)
        others = [
            replace(t, uses_pdl=current.uses_pdl)
            for t, s in same_formats
            if s <= limit and t not in variants and self.fits_workspace(node, t)
        ]
        families = {t.family: t for t in reversed(others) if t.family != current.family}
        # Other families may rank differently in the network, so the best of each comes first.
        best_of_families = list(families.values())
        rest = [t for t in others if t not in best_of_families]
        return [
            current,
            *(t for t in variants if t != current),
            *[*best_of_families, *rest][: self.effort.extra_candidates],
        ]

    def _bytes(self, node: Node, tactic: Tactic) -> int:
        """Return the bytes of the packed constants and the workspace of a tactic."""
        packed = self.backend.family(tactic.family).pack(node, tactic)
        workspace = evaluate_dim(tactic.workspace_bytes, self.sizes)
        return sum(map(constant_bytes, packed)) + workspace

    def _spans(self, group: _NodeGroup) -> list[tuple[int, int]]:
        """Return the spans around each node of a group; overlapping spans are merged."""
        if self.plan_timer.times_whole_plan:
            return [(-1, len(self.graph.nodes))]
        rank_of = {self.graph.nodes[i]: k for k, i in enumerate(self.timed)}
        spans: list[tuple[int, int]] = []
        for k in sorted(rank_of[node] for node in group.nodes):
            start = k - _NODES_JUDGED_BEFORE - 1
            first = self.timed[start] if start >= 0 else -1
            last = self.timed[min(k + _NODES_JUDGED_AFTER, len(self.timed) - 1)]
            if spans and spans[-1][1] >= first:
                first = spans.pop()[0]
            spans.append((first, last))
        return spans

    # ---- whole plans

    def _fastest(self, assignments: Sequence[Assignment]) -> Assignment:
        """Return the fastest of several assignments; the first of equal ones."""
        if len(assignments) == 1:
            return assignments[0]
        seconds = self.plan_seconds(assignments)
        return assignments[min(range(len(assignments)), key=lambda i: (seconds[i], i))]

    def plan_seconds(self, assignments: Sequence[Assignment]) -> list[float]:
        """Return the seconds of whole plans in interleaved runs; infinity for a rejected one.

        Assignments may be of any graph in ``graphs`` that the plan runner supports.
        """
        contexts = [self._context(assignment) for assignment in assignments]
        keys = [f"{context} | whole, beside {' '.join(contexts)}" for context in contexts]
        if any(
            self.cache.get(key) is None and not self._is_rejected(assignment)
            for key, assignment in zip(keys, assignments, strict=True)
        ):
            runs = self._milliseconds(assignments, 3 * self.effort.runs)
            for key, times in zip(keys, runs, strict=True):
                if np.isfinite(times).all():
                    self.cache.put(key, float(np.median(times[:, -1])) / 1e3)
        seconds = [
            math.inf if self._is_rejected(assignment) else self.cache.get(key) or math.inf
            for key, assignment in zip(keys, assignments, strict=True)
        ]
        _LOG.debug("plans timed as a whole: %s", ", ".join(f"{s:.3e} s" for s in seconds))
        return seconds

    def _context(self, assignment: Assignment) -> str:
        """Return a short key of everything that times in the network depend on."""
        graph = graph_of(assignment, self.graphs)
        position = {node: i for i, node in enumerate(graph.nodes)}
        codegen_version = f"{VERSION} {self.backend.codegen_version}"
        conditions = f"{codegen_version} {self.where} {sorted(self.sizes.items())}"
        digest = hashlib.sha256(conditions.encode())
        for node in graph.nodes:
            producers = [
                None if v is None or v.producer is None else position[v.producer]
                for v in node.inputs
            ]
            text = f"\n{node_text(node)} {producers} {tactic_text(assignment[node])}"
            digest.update(text.encode())
        return f"network {digest.hexdigest()[:24]}"


def _schedule_trials(
    groups: Sequence[_NodeGroup], assignment: Assignment, timed: Sequence[int], max_plans: int
) -> tuple[list[_TrialPlan], dict[tuple[str, Tactic], int]]:
    """Distribute candidates over few plans; return the plans and the plan index of each candidate.

    At most ``max_plans`` plans are made; the candidates with the lowest rank are left out.
    """
    trial_plans: list[_TrialPlan] = []
    plan_of_candidate: dict[tuple[str, Tactic], int] = {}
    ranked = [
        (rank, group, tactic)
        for group in groups
        for rank, tactic in enumerate(group.tactics)
        if rank
    ]
    for _, group, tactic in sorted(ranked, key=lambda entry: entry[0]):
        judged = {i for first, last in group.spans for i in timed if first < i <= last}
        number = next(
            (n for n, t in enumerate(trial_plans) if not t.judged_nodes & judged), len(trial_plans)
        )
        if number == max_plans:
            continue
        if number == len(trial_plans):
            trial_plans.append(_TrialPlan(dict(assignment)))
        trial_plans[number].judged_nodes |= judged
        trial_plans[number].assignment.update((node, tactic) for node in group.nodes)
        plan_of_candidate[group.text, tactic] = number
    return trial_plans, plan_of_candidate


def _median(times: NDArray[np.float64], first: int, last: int) -> float:
    """Return the median milliseconds from the end of node ``first`` to that of node ``last``."""
    start = times[:, first] if first >= 0 else 0.0
    return float(np.median(times[:, last] - start))


def _best_index(times: Sequence[float], bytes_touched: Sequence[int]) -> int:
    """Return the index of the least time; among nearly equal times, that of the fewest bytes."""
    limit = min(times) * (1 + _TIE_TOLERANCE)
    equal = [i for i, seconds in enumerate(times) if seconds <= limit]
    return min(equal, key=lambda i: (bytes_touched[i], times[i], i))
