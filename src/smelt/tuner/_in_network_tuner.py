"""The last word on tactics, where it counts: in the network.

Alone, the fastest candidate may be one with large weights, which then lie in the cache; in a
network they come from memory each time, and push out those of others. So the best few candidates of
each node play by turns in whole plans, and a node's candidate is judged by the time from shortly
before the node to shortly after it: what it costs its neighbours counts. Many nodes try something
in one plan, but none near another that does.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import dataclass, field, replace
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
    from smelt.tuner._tactic_choice import Choice
    from smelt.tuner._timing_cache import TimingCache

_LOG = logging.getLogger(__name__)
_NODES_JUDGED_BEFORE: Final = 1
"""How many nodes before one are judged with it: they fetch its weights, and write its input."""
_NODES_JUDGED_AFTER: Final = 2
"""How many after it: it may have pushed out what they read."""
_NEGLIGIBLE: Final = 0.003
"""Nodes that take a smaller share of the whole stay as they are."""
_MIN_RUNS: Final = 3
"""Fewer runs than this are not worth a plan."""
_SHORT_PLAN_PASS_FACTOR: Final = 3
"""So many times the passes have brief plans."""
_TIE_TOLERANCE: Final = 0.01
"""Times that differ by a smaller share are equal: the one that goes through less memory wins."""


class PlanRunner(Protocol):
    """Where plans run by turns; a `InNetworkTrial`."""

    times_whole_plan: bool
    """Whether a stretch of a plan says nothing: launches run into each other there. Then each
    candidate has a plan to itself, and is judged by the whole."""
    seconds_per_trial: float
    """What it takes to prepare a plan."""

    def milliseconds(
        self, assignments: Sequence[Assignment], *, runs: int, seconds: float
    ) -> list[NDArray[np.float64]]:
        """For each cast an array (runs, nodes + 1): when each node was complete, then the whole."""
        ...


@dataclass(frozen=True, slots=True)
class InNetworkEffort:
    """How much is tried."""

    extra_candidates: int = 3
    """Candidates of a node beside the one that is fastest alone."""
    max_slowdown: float = 2.0
    """How much slower than the fastest alone a candidate may be and still be tried."""
    passes: int = 1
    runs: int = 8
    """Runs of each plan."""
    seconds: float = 4.0
    """Time for the runs of a pass."""
    short_plan_seconds: float = 0.0
    """Plans that take less have several times the passes: what is best in one place changes
    with what is chosen in others, most of all where launches run into each other."""
    change_subsets: int = 1
    """How much of what a pass changes is tried: all of it, then the half that gains most, and so
    on. What is better by itself may be worse together, and a gain that was luck is among the least.
    """
    min_plan_seconds: float = 1e-4
    """Plans that take less stay as they are: they find all their weights in the cache."""


@dataclass(slots=True)
class _NodeGroup:
    """Nodes that compute alike, and are given the same tactic."""

    text: str
    """What they compute, and where the first is: unlike that of any other part."""
    nodes: list[Node]
    tactics: list[Tactic]
    """What is tried, the one that holds first."""
    bytes_touched: list[int] = field(default_factory=list[int])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Stretches of the plan by which it is judged: positions of nodes, after the first of which
    and up to the second."""


@dataclass(slots=True)
class _TrialPlan:
    """A plan to try: the tactics that hold, but for parts that are not near each other."""

    assignment: Assignment
    judged_nodes: set[int] = field(default_factory=set[int])
    """Positions of nodes that are judged."""


class InNetworkTuner:
    """Compares candidates in whole plans, and remembers what came of it."""

    def __init__(
        self,
        graph: Graph,
        choice: Choice,
        plan_runner: PlanRunner,
        backend: Backend[Any],
        cache: TimingCache,
        *,
        effort: InNetworkEffort,
        where: str,
        sizes: Mapping[str, int],
        fits_workspace: Callable[[Node, Tactic], bool] = lambda _node, _tactic: True,
        deadline: float = math.inf,
        compile_seconds: float = 0.0,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """A trial of the candidates that ``choice`` holds.

        Args:
            graph: optimised, its types inferred.
            choice: the decision so far; `run` improves it.
            plan_runner: runs plans.
            backend: has the tactics' families.
            cache: what was measured, and will be.
            effort: how much to try.
            where: what times depend on beside the graph: machine, threads.
            sizes: symbol values to tune for.
            fits_workspace: whether a tactic is to be considered for a node.
            deadline: when to be done, in the time of ``time.perf_counter``.
            compile_seconds: what it may take to compile the candidates once more, for their places
                in the plan.
            progress: told how many of its rounds are done, and of how many.
        """
        self.graph, self.choice, self.plan_runner, self.backend = (
            graph,
            choice,
            plan_runner,
            backend,
        )
        self.graphs = [graph]
        """Graphs that compute the same, which casts may be of."""
        self.cache, self.effort, self.where, self.sizes = cache, effort, where, sizes
        self.fits_workspace, self.deadline, self.compile_seconds = (
            fits_workspace,
            deadline,
            compile_seconds,
        )
        self.progress = progress
        self.timed = [
            i for i, node in enumerate(graph.nodes) if not is_not_timed(choice.tactics[node])
        ]
        """Positions of the nodes that take time."""

    def run(self) -> None:
        """Put the best tactics into the choice, with the reasons."""
        first = dict(self.choice.tactics)
        seconds = sum(self._isolated_seconds(first).values())
        if seconds < self.effort.min_plan_seconds:
            return
        is_brief = seconds < self.effort.short_plan_seconds
        rounds = self.effort.passes * (_SHORT_PLAN_PASS_FACTOR if is_brief else 1) + 1
        self.progress(0, rounds)
        best = self._fastest([first, *self._uniform_launch_variants(first)])
        for number in range(1, rounds):
            self.progress(number, rounds)
            better = self._fastest([*self._improved(best), best])
            if better is best:
                break
            best = better
        # What was right the first time and is wrong now was lucky; the first starts nothing early.
        self.choice.tactics = first if self._is_rejected(best) else best
        self.progress(rounds, rounds)

    def _uniform_launch_variants(self, assignment: Assignment) -> list[Assignment]:
        """The cast with all kernels launched in one way, for each way."""
        if self._seconds_left() <= 0:
            return []
        launch_ways = {k: self.backend.launch_variants(tactic) for k, tactic in assignment.items()}
        count = max(map(len, launch_ways.values()), default=0)
        alike = [
            {
                k: launch_ways[k][number] if launch_ways[k] else tactic
                for k, tactic in assignment.items()
            }
            for number in range(count)
        ]
        return [one for one in alike if one != assignment]

    # ---- one pass

    def _improved(self, assignment: Assignment) -> list[Assignment]:
        """The cast with what is better in its context: all of it, and subsets.

        Nothing when there is no time to find out, or when nothing is better.
        """
        parts = self._node_groups(assignment)
        context = self._context(assignment)
        keys = {
            (part.text, tactic): f"{context} | {part.text} | {tactic_text(tactic)}"
            for part in parts
            for tactic in part.tactics
        }
        if any(self.cache.get(keys[part.text, part.tactics[0]]) is None for part in parts):
            most = self._max_trial_plans(assignment)
            if most < 1:
                return []
            measured = self._measured(parts, assignment, most)
            if self._is_rejected(assignment):
                return []
            for played, seconds in measured.items():
                self.cache.put(keys[played], seconds)
        gains: list[tuple[float, Assignment]] = []
        for part in parts:
            known = [self.cache.get(keys[part.text, tactic]) for tactic in part.tactics]
            times = [math.inf if seconds is None else seconds for seconds in known]
            least = _least(times, part.bytes_touched)
            sorted_times = sorted(
                (seconds, str(tactic))
                for seconds, tactic in zip(times, part.tactics, strict=True)
                if math.isfinite(seconds)
            )
            for node in part.nodes:
                self.choice.in_network[node.name] = [
                    (text, seconds) for seconds, text in sorted_times
                ]
            if least:
                gain = (times[0] - times[least]) * len(part.nodes)
                gains.append((gain, dict.fromkeys(part.nodes, part.tactics[least])))
        return self._subsets(assignment, gains)

    def _subsets(
        self, assignment: Assignment, gains: list[tuple[float, Assignment]]
    ) -> list[Assignment]:
        """A cast with all of several changes, with the half that gains most, and so on."""
        gains.sort(key=lambda change: -change[0])
        found: list[Assignment] = []
        for halvings in range(self.effort.change_subsets):
            if count := len(gains) >> halvings:
                found.append(dict(assignment))
                for _, change in gains[:count]:
                    found[-1] |= change
        return found

    def _max_trial_plans(self, assignment: Assignment) -> int:
        """How many plans there is time to try beside the one that holds."""
        left = max(0.0, self.deadline - time.perf_counter() - self.compile_seconds)
        whole = sum(self._isolated_seconds(assignment).values())
        each = self.plan_runner.seconds_per_trial + _MIN_RUNS * max(whole, 1e-6)
        return int(min(self.effort.seconds, left) / each) - 1

    def _isolated_seconds(self, assignment: Assignment) -> dict[Node, float]:
        """The seconds of each node by itself, where it takes any."""
        nodes = [self.graph.nodes[i] for i in self.timed]
        found: dict[Node, float] = {}
        for node in nodes:
            times, tactic = dict(self.choice.timed[node]), assignment[node]
            launch_ways = self.backend.launch_variants(tactic) or (tactic,)
            found[node] = max((times.get(way, 0.0) for way in launch_ways), default=0.0)
        return found

    def _measured(
        self, parts: Sequence[_NodeGroup], assignment: Assignment, most: int
    ) -> dict[tuple[str, Tactic], float]:
        """Seconds of what there is time to try, with what it costs the nodes around."""
        trial_plans, plan_of_candidate = _schedule_trials(parts, assignment, self.timed, most)
        runs = self._milliseconds(
            [assignment, *(t.assignment for t in trial_plans)], self.effort.runs
        )
        if not np.isfinite(runs[0]).all():
            return {}
        position = {node: i for i, node in enumerate(self.graph.nodes)}

        def seconds_unchanged(first: int, last: int) -> float:
            """The time of a stretch in all the plans that change nothing there."""
            judged = {i for i in self.timed if first < i <= last}
            plain = [
                r
                for r, t in zip(runs[1:], trial_plans, strict=True)
                if not t.judged_nodes & judged and np.isfinite(r).all()
            ]
            return _median(np.concatenate([runs[0], *plain]), first, last)

        seconds: dict[tuple[str, Tactic], float] = {}
        for part in parts:
            own = sum(seconds_unchanged(i - 1, i) for i in (position[n] for n in part.nodes))
            before = sum(seconds_unchanged(*span) for span in part.spans)
            seconds[part.text, part.tactics[0]] = own / len(part.nodes) / 1e3
            for tactic in part.tactics[1:]:
                if (part.text, tactic) not in plan_of_candidate:
                    continue
                played = runs[1 + plan_of_candidate[part.text, tactic]]
                if not np.isfinite(played).all():
                    continue
                after = sum(_median(played, *span) for span in part.spans)
                charged = max(0.0, own + after - before) / len(part.nodes)
                seconds[part.text, tactic] = charged / 1e3
        return seconds

    def _milliseconds(
        self, assignments: Sequence[Assignment], runs: int
    ) -> list[NDArray[np.float64]]:
        """What the stage says of plans; of those that take forever that is noted."""
        times = self.plan_runner.milliseconds(assignments, runs=runs, seconds=self._seconds_left())
        for assignment, own in zip(assignments, times, strict=True):
            if not np.isfinite(own).all():
                self.cache.put(f"{self._context(assignment)} | is out", 0.0)
        return times

    def _is_rejected(self, assignment: Assignment) -> bool:
        """Whether a plan was once found not to run, or not to compute the same each time."""
        return self.cache.get(f"{self._context(assignment)} | is out") is not None

    def _seconds_left(self) -> float:
        return min(self.effort.seconds, self.deadline - time.perf_counter())

    # ---- who plays

    def _node_groups(self, assignment: Assignment) -> list[_NodeGroup]:
        alone = self._isolated_seconds(assignment)
        least = _NEGLIGIBLE * sum(alone.values())
        parts: dict[object, _NodeGroup] = {}
        for i in self.timed:
            node = self.graph.nodes[i]
            if alone[node] < least:
                continue
            tactics = self._candidates_of(node, assignment[node])
            if len(tactics) > 1:
                text = node_text(node)
                part = _NodeGroup(f"{text} at {i}", [], tactics)
                parts.setdefault((text, *tactics), part).nodes.append(node)
        for part in parts.values():
            part.bytes_touched = [self._bytes(part.nodes[0], t) for t in part.tactics]
            part.spans = self._spans(part)
        return list(parts.values())

    def _candidates_of(self, node: Node, current: Tactic) -> list[Tactic]:
        """The tactic that holds, then the fastest others of its formats."""
        same = [
            (tactic, seconds)
            for tactic, seconds in self.choice.timed[node]
            if (tactic.inputs, tactic.outputs) == (current.inputs, current.outputs)
            and not is_not_timed(tactic)
        ]
        most = min((seconds for _, seconds in same), default=0.0) * self.effort.max_slowdown
        launch_ways = self.backend.launch_variants(current) or (current,)
        others = [
            replace(t, uses_pdl=current.uses_pdl)
            for t, s in same
            if s <= most and t not in launch_ways and self.fits_workspace(node, t)
        ]
        families = {t.family: t for t in reversed(others) if t.family != current.family}
        # What works in another way may fare quite differently here, so its best comes first.
        first = list(families.values())
        rest = [t for t in others if t not in first]
        return [
            current,
            *(t for t in launch_ways if t != current),
            *[*first, *rest][: self.effort.extra_candidates],
        ]

    def _bytes(self, node: Node, tactic: Tactic) -> int:
        """Memory that a tactic goes through beside the tensors."""
        packed = self.backend.family(tactic.family).pack(node, tactic)
        workspace = evaluate_dim(tactic.workspace_bytes, self.sizes)
        return sum(map(constant_bytes, packed)) + workspace

    def _spans(self, part: _NodeGroup) -> list[tuple[int, int]]:
        """Where the part is judged: around each of its nodes, what overlaps made one."""
        if self.plan_runner.times_whole_plan:
            return [(-1, len(self.graph.nodes))]
        place = {self.graph.nodes[i]: k for k, i in enumerate(self.timed)}
        spans: list[tuple[int, int]] = []
        for k in sorted(place[node] for node in part.nodes):
            start = k - _NODES_JUDGED_BEFORE - 1
            first = self.timed[start] if start >= 0 else -1
            last = self.timed[min(k + _NODES_JUDGED_AFTER, len(self.timed) - 1)]
            if spans and spans[-1][1] >= first:
                first = spans.pop()[0]
            spans.append((first, last))
        return spans

    # ---- the whole

    def _fastest(self, assignments: Sequence[Assignment]) -> Assignment:
        """Of several casts the fastest; of equal ones the first."""
        if len(assignments) == 1:
            return assignments[0]
        seconds = self.plan_seconds(assignments)
        return assignments[min(range(len(assignments)), key=lambda i: (seconds[i], i))]

    def plan_seconds(self, assignments: Sequence[Assignment]) -> list[float]:
        """What whole plans take that run by turns; infinity for one that is out.

        They may be of any of ``graphs``, if the stage knows it.
        """
        contexts = [self._context(assignment) for assignment in assignments]
        keys = [f"{own} | whole, beside {' '.join(contexts)}" for own in contexts]
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
        """Everything on which times in the network depend, as a short name."""
        graph = graph_of(assignment, self.graphs)
        position = {node: i for i, node in enumerate(graph.nodes)}
        codegen_version = f"{VERSION} {self.backend.codegen_version}"
        digest = hashlib.sha256(
            f"{codegen_version} {self.where} {sorted(self.sizes.items())}".encode()
        )
        for node in graph.nodes:
            makers = [
                None if v is None or v.producer is None else position[v.producer]
                for v in node.inputs
            ]
            digest.update(f"\n{node_text(node)} {makers} {tactic_text(assignment[node])}".encode())
        return f"network {digest.hexdigest()[:24]}"


def _schedule_trials(
    parts: Sequence[_NodeGroup], assignment: Assignment, timed: Sequence[int], most: int
) -> tuple[list[_TrialPlan], dict[tuple[str, Tactic], int]]:
    """As few plans as will do, and in which of them each part plays each of its tactics.

    What ``most`` plans have no room for is left out: the least promising tactics.
    """
    trial_plans: list[_TrialPlan] = []
    plan_of_candidate: dict[tuple[str, Tactic], int] = {}
    ranked = [
        (rank, part, tactic) for part in parts for rank, tactic in enumerate(part.tactics) if rank
    ]
    for _, part, tactic in sorted(ranked, key=lambda entry: entry[0]):
        judged = {i for first, last in part.spans for i in timed if first < i <= last}
        number = next(
            (n for n, t in enumerate(trial_plans) if not t.judged_nodes & judged), len(trial_plans)
        )
        if number == most:
            continue
        if number == len(trial_plans):
            trial_plans.append(_TrialPlan(dict(assignment)))
        trial_plans[number].judged_nodes |= judged
        trial_plans[number].assignment.update((node, tactic) for node in part.nodes)
        plan_of_candidate[part.text, tactic] = number
    return trial_plans, plan_of_candidate


def _median(times: NDArray[np.float64], first: int, last: int) -> float:
    """Milliseconds from the end of one node to the end of another."""
    start = times[:, first] if first >= 0 else 0.0
    return float(np.median(times[:, last] - start))


def _least(times: Sequence[float], bytes_touched: Sequence[int]) -> int:
    """The position of the least time; among times that are nearly equal, of the fewest bytes."""
    most = min(times) * (1 + _TIE_TOLERANCE)
    equal = [i for i, seconds in enumerate(times) if seconds <= most]
    return min(equal, key=lambda i: (bytes_touched[i], times[i], i))
