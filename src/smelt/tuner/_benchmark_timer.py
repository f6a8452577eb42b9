"""Estimates say which candidates are worth a clock; the clock says which of them is best alone."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from smelt.tuner._isolated_node import TimingRepeats
from smelt.types import TensorType, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node
    from smelt.tuner._timing_cache import TimingCache
    from smelt.types import Limit


_LOG = logging.getLogger(__name__)
LONG_SECONDS: Final = 8e-6


class Bench(Protocol):
    """Where tactics of single nodes are tried, on some device."""

    copy_sample_types: ClassVar[tuple[TensorType, TensorType]]
    """A small tensor and a large one, by whose copies other copies are priced."""
    trial_limit: ClassVar[Limit]
    """The most bytes of tensors of a node that is run: the reference computes them on the host."""

    @property
    def refused(self) -> Mapping[tuple[str, str], str]:
        """Why candidates are out, by the node's name and the tactic's text."""
        ...

    @property
    def where(self) -> str:
        """What times depend on beside nodes, tactics and sizes: machine, compiler, generators."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """The symbol values that are tuned for."""
        ...

    def compile_candidates(self, work: Sequence[tuple[Node, Tactic]], *, deadline: float) -> None:
        """Compile what is going to be timed, as much as can be until ``deadline``."""
        ...

    def seconds(
        self, node: Node, tactics: Sequence[Tactic], *, repeats: TimingRepeats
    ) -> list[float]:
        """The time of each tactic; infinity for one that is wrong, NaN where there was no time."""
        ...

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        """The time of a copy of a tensor between the model's axis order and channels last."""
        ...


class BenchmarkTimer:
    """Measures the few best candidates by their estimates; believes the estimates of the others."""

    def __init__(
        self,
        bench: Bench,
        cache: TimingCache,
        *,
        max_timed: int,
        max_timed_long: int | None = None,
        repeats: int,
        runs_per_mean: int = 1,
        seconds: float = math.inf,
        seconds_per_trial: float = 0.02,
        min_sample_seconds: float = 0.0,
    ) -> None:
        """Measure candidates of single nodes.

        Args:
            bench: where they are tried.
            cache: what was measured, and will be.
            max_timed: how many are measured of each family, arithmetic and formats.
            max_timed_long: the same where even the best takes long: estimates are surer there.
            repeats: how often each is measured.
            runs_per_mean: of how many runs each time is the mean.
            seconds: time for everything.
            seconds_per_trial: time for a candidate, after two repeats.
            min_sample_seconds: a mean is taken of more runs where it would last less.
        """
        self.bench, self.cache = bench, cache
        self.max_timed = max_timed
        self.max_timed_long = max_timed if max_timed_long is None else max_timed_long
        self.repeats = TimingRepeats(repeats, runs_per_mean, seconds_per_trial, min_sample_seconds)
        self.deadline = time.perf_counter() + seconds
        self._wrong_result_reasons: dict[str, str] = {}

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Compile what will have to be measured."""
        wanted: dict[str, tuple[Node, Tactic]] = {}
        for node, tactics in work:
            for i in self._best_by_estimate(tactics):
                key = self._key(node, tactics[i])
                if self.cache.get(key) is None:
                    wanted.setdefault(key, (node, tactics[i]))
        self.bench.compile_candidates(list(wanted.values()), deadline=self.deadline)

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Seconds of the most promising tactics of each format, infinity for the others."""
        times = [t.cost_hint if is_not_timed(t) else math.inf for t in tactics]
        chosen = self._best_by_estimate(tactics)
        for i, seconds in self._measured(node, tactics, chosen).items():
            times[i] = seconds
        self._wrong_result_reasons.pop(node.name, None)
        if chosen and all(times[i] == math.inf for i in chosen):
            best = min(chosen, key=lambda i: tactics[i].cost_hint)
            reason = self.bench.refused.get((node.name, str(tactics[best])), "")
            self._wrong_result_reasons[node.name] = f"{tactics[best]}: {reason}"
        return _without_unknown_times(times, tactics, chosen)

    def wrong_result_reason(self, node: Node) -> str:
        """Why all kernels that were tried for a node are wrong; empty where one is right."""
        return self._wrong_result_reasons.get(node.name, "")

    def verified_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Seconds by the clock; infinity for what is wrong, and for what was not tried."""
        known = self._measured(node, tactics, self._best_by_estimate(tactics))
        times = (known.get(i, math.inf) for i in range(len(tactics)))
        return [math.inf if math.isnan(seconds) else seconds for seconds in times]

    def _measured(
        self, node: Node, tactics: Sequence[Tactic], chosen: Sequence[int]
    ) -> dict[int, float]:
        """The time of each chosen tactic; infinity for one that is wrong, NaN for lack of time."""
        keys = {i: self._key(node, tactics[i]) for i in chosen}
        times = {i: self.cache.get(key) or math.nan for i, key in keys.items()}
        unknown = [i for i, seconds in times.items() if math.isnan(seconds)]
        if not unknown or time.perf_counter() > self.deadline:
            return times
        limit = self.bench.trial_limit
        if (size := tensor_bytes(node, self.bench.sizes)) > limit.most:
            _LOG.info("%s is not timed: its tensors have %s", node, limit.excess(size))
            return times
        measured = self.bench.seconds(node, [tactics[i] for i in unknown], repeats=self.repeats)
        for i, seconds in zip(unknown, measured, strict=True):
            times[i] = seconds
            if math.isfinite(seconds):
                self.cache.put(keys[i], seconds)
        return times

    def copy_seconds(self, moved_bytes: int) -> float:
        """Seconds of a copy between formats, by those that were measured."""
        small, large = self.bench.copy_sample_types
        least, most = self._copy_of(small), self._copy_of(large)
        share = (moved_bytes - _moved_bytes(small)) / (_moved_bytes(large) - _moved_bytes(small))
        return least + max(0.0, most - least) * max(0.0, share)

    def _copy_of(self, kind: TensorType) -> float:
        key = f"copy of {kind} | {self.bench.where}"
        known = self.cache.get(key)
        if known is None:
            known = self.bench.copy_seconds(kind, repeats=self.repeats)
            self.cache.put(key, known)
        return known

    def _best_by_estimate(self, tactics: Sequence[Tactic]) -> list[int]:
        """The best by estimate of each family and arithmetic, for every combination of formats."""
        groups: dict[object, list[int]] = {}
        for i, tactic in enumerate(tactics):
            if not is_not_timed(tactic):
                dot_product = dict(tactic.parameters).get("dot_product")
                key = (tactic.inputs, tactic.outputs, tactic.family, dot_product)
                groups.setdefault(key, []).append(i)
        best: list[int] = []
        for group in groups.values():
            group.sort(key=lambda i: tactics[i].cost_hint)
            is_long = tactics[group[0]].cost_hint > LONG_SECONDS
            best += group[: self.max_timed_long if is_long else self.max_timed]
        return sorted(best)

    def _key(self, node: Node, tactic: Tactic) -> str:
        lab = self.bench
        where = f"{lab.where}, {sorted(lab.sizes.items())}"
        return f"{node_text(node)} | {tactic_text(tactic)} | {where}"


def tensor_bytes(node: Node, sizes: Mapping[str, int]) -> int:
    """What a node reads and writes in a run, its constants apart."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.constant is None]
    kinds = [v.type for v in values if isinstance(v.type, TensorType)]
    return sum(k.dtype.size_bytes * evaluate_dim(element_count(k.shape), sizes) for k in kinds)


def _moved_bytes(kind: TensorType) -> int:
    """What a copy of the tensor reads and writes."""
    return 2 * kind.dtype.size_bytes * evaluate_dim(element_count(kind.shape), {})


def node_text(node: Node) -> str:
    """What a node computes: equal for nodes that take the same time."""
    inputs = ", ".join("-" if v is None else str(v.type) for v in node.inputs)
    return f"{node.op} on {inputs} -> {', '.join(str(v.type) for v in node.outputs)}"


def tactic_text(tactic: Tactic) -> str:
    """A tactic with its formats."""
    formats = " ".join("-" if f is None else str(f) for f in (*tactic.inputs, *tactic.outputs))
    return f"{tactic} | {formats}"


def _without_unknown_times(
    times: Sequence[float], tactics: Sequence[Tactic], chosen: Sequence[int]
) -> list[float]:
    """Times of which none is unknown: where nothing could be measured, estimates are believed.

    What is wrong is never believed: it takes forever.
    """
    is_measured = any(math.isfinite(times[i]) for i in chosen)
    settled = [
        seconds if not math.isnan(seconds) else math.inf if is_measured else tactic.cost_hint
        for seconds, tactic in zip(times, tactics, strict=True)
    ]
    if any(map(math.isfinite, settled)):
        return settled
    return [math.inf if i in chosen else t.cost_hint for i, t in enumerate(tactics)]


def is_not_timed(tactic: Tactic) -> bool:
    """Whether there is nothing to measure: windows cost nothing, references are the last resort."""
    return tactic.is_reference or tactic.aliasing.value != "none"
