"""Timer that measures the candidates with the best cost estimates, each as an isolated node.

Estimates from the cost model select the candidates that are worth measuring. The measured times
then rank them.
"""

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
SLOW_SECONDS: Final = 8e-6
"""Estimated seconds above which a node counts as slow and `max_timed_slow` applies. By measured
times, eight candidates instead of sixteen above this limit lose 0.2 % on average
(docs/lab/tuning-on-gpus.md)."""


class Bench(Protocol):
    """Compiles, checks and times tactics of single nodes on one device."""

    copy_sample_types: ClassVar[tuple[TensorType, TensorType]]
    """A small and a large tensor; costs of other copies are interpolated from their copy times."""
    trial_limit: ClassVar[Limit]
    """Maximum total bytes of a node's tensors for the node to be run.

    The reference results are computed on the host, which is slow for larger nodes.
    """

    @property
    def refused(self) -> Mapping[tuple[str, str], str]:
        """Rejection reasons of candidates by node name and tactic text."""
        ...

    @property
    def where(self) -> str:
        """Key of what times depend on besides node, tactic and sizes.

        It names the machine, the compiler and the code generators.
        """
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Symbol values at which candidates are measured."""
        ...

    def compile_candidates(self, work: Sequence[tuple[Node, Tactic]], *, deadline: float) -> None:
        """Compile the candidates in ``work``; stop at ``deadline`` (``time.perf_counter``)."""
        ...

    def seconds(
        self, node: Node, tactics: Sequence[Tactic], *, repeats: TimingRepeats
    ) -> list[float]:
        """Return the seconds of each tactic.

        Infinity marks a tactic with wrong results, NaN one that was not measured in time.
        """
        ...

    def copy_seconds(self, kind: TensorType, *, repeats: TimingRepeats) -> float:
        """Return the seconds of a copy of a tensor from the model's axis order to channels last."""
        ...


class BenchmarkTimer:
    """Measures the candidates with the best estimates.

    Candidates that are never timed (views and references) keep their estimates.
    """

    def __init__(
        self,
        bench: Bench,
        cache: TimingCache,
        *,
        max_timed: int,
        max_timed_slow: int | None = None,
        repeats: int,
        runs_per_mean: int = 1,
        seconds: float = math.inf,
        seconds_per_trial: float = 0.02,
        min_sample_seconds: float = 0.0,
    ) -> None:
        """Create a timer.

        Args:
            bench: compiles and runs the candidates.
            cache: timing cache that is read before and updated after each measurement.
            max_timed: number of candidates measured per family, dot product and formats.
            max_timed_slow: the same for groups whose best estimate exceeds `SLOW_SECONDS`, where
                estimates are more reliable; None for ``max_timed``.
            repeats: number of samples per candidate.
            runs_per_mean: number of runs that one sample averages.
            seconds: time limit for all measurements.
            seconds_per_trial: time limit for one candidate, checked after two samples.
            min_sample_seconds: minimum duration of a sample; shorter ones average more runs.
        """
        self.bench, self.cache = bench, cache
        self.max_timed = max_timed
        self.max_timed_slow = max_timed if max_timed_slow is None else max_timed_slow
        self.repeats = TimingRepeats(repeats, runs_per_mean, seconds_per_trial, min_sample_seconds)
        self.deadline = time.perf_counter() + seconds
        self._wrong_result_reasons: dict[str, str] = {}

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Compile the candidates that the cache has no time for."""
        pending: dict[str, tuple[Node, Tactic]] = {}
        for node, tactics in work:
            for i in self._best_by_estimate(tactics):
                key = self._key(node, tactics[i])
                if self.cache.get(key) is None:
                    pending.setdefault(key, (node, tactics[i]))
        self.bench.compile_candidates(list(pending.values()), deadline=self.deadline)

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Return the seconds of each tactic; infinity for one that is wrong or was not measured.

        Views and references keep their estimates. If nothing could be measured, the tactics that
        were selected for measurement keep theirs, too.
        """
        times = [t.estimated_seconds if is_not_timed(t) else math.inf for t in tactics]
        chosen = self._best_by_estimate(tactics)
        for i, seconds in self._measured(node, tactics, chosen).items():
            times[i] = seconds
        self._wrong_result_reasons.pop(node.name, None)
        if chosen and all(times[i] == math.inf for i in chosen):
            best = min(chosen, key=lambda i: tactics[i].estimated_seconds)
            reason = self.bench.refused.get((node.name, str(tactics[best])), "")
            self._wrong_result_reasons[node.name] = f"{tactics[best]}: {reason}"
        return _without_unknown_times(times, tactics, chosen)

    def wrong_result_reason(self, node: Node) -> str:
        """Return why all measured tactics of a node were rejected; empty if one was accepted."""
        return self._wrong_result_reasons.get(node.name, "")

    def verified_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Return measured seconds only; infinity for a tactic that is wrong or not measured."""
        known = self._measured(node, tactics, self._best_by_estimate(tactics))
        times = (known.get(i, math.inf) for i in range(len(tactics)))
        return [math.inf if math.isnan(seconds) else seconds for seconds in times]

    def _measured(
        self, node: Node, tactics: Sequence[Tactic], chosen: Sequence[int]
    ) -> dict[int, float]:
        """Return the seconds of each chosen tactic by its index, from the cache or the bench.

        Infinity marks a tactic with wrong results, NaN one that was not measured.
        """
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
        """Return seconds of a format copy, interpolated between the two measured copies."""
        small, large = self.bench.copy_sample_types
        small_seconds, large_seconds = self._copy_of(small), self._copy_of(large)
        share = (moved_bytes - _copied_bytes(small)) / (_copied_bytes(large) - _copied_bytes(small))
        return small_seconds + max(0.0, large_seconds - small_seconds) * max(0.0, share)

    def _copy_of(self, kind: TensorType) -> float:
        key = f"copy of {kind} | {self.bench.where}"
        seconds = self.cache.get(key)
        if seconds is None:
            seconds = self.bench.copy_seconds(kind, repeats=self.repeats)
            self.cache.put(key, seconds)
        return seconds

    def _best_by_estimate(self, tactics: Sequence[Tactic]) -> list[int]:
        """Return indices of the best estimates of each family, dot product and formats."""
        groups: dict[object, list[int]] = {}
        for i, tactic in enumerate(tactics):
            if not is_not_timed(tactic):
                dot_product = dict(tactic.parameters).get("dot_product")
                key = (tactic.formats, tactic.family, dot_product)
                groups.setdefault(key, []).append(i)
        best: list[int] = []
        for group in groups.values():
            group.sort(key=lambda i: tactics[i].estimated_seconds)
            is_slow = tactics[group[0]].estimated_seconds > SLOW_SECONDS
            best += group[: self.max_timed_slow if is_slow else self.max_timed]
        return sorted(best)

    def _key(self, node: Node, tactic: Tactic) -> str:
        bench = self.bench
        where = f"{bench.where}, {sorted(bench.sizes.items())}"
        return f"{node_text(node)} | {tactic_text(tactic)} | {where}"


def tensor_bytes(node: Node, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the tensors that a node reads and writes, without its constants."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.constant is None]
    kinds = [v.type for v in values if isinstance(v.type, TensorType)]
    return sum(k.dtype.size_bytes * evaluate_dim(element_count(k.shape), sizes) for k in kinds)


def _copied_bytes(kind: TensorType) -> int:
    """Return the bytes that a copy of the tensor reads and writes."""
    return 2 * kind.dtype.size_bytes * evaluate_dim(element_count(kind.shape), {})


def node_text(node: Node) -> str:
    """Describe what a node computes; equal for nodes that take the same time."""
    inputs = ", ".join("-" if v is None else str(v.type) for v in node.inputs)
    return f"{node.op} on {inputs} -> {', '.join(str(v.type) for v in node.outputs)}"


def tactic_text(tactic: Tactic) -> str:
    """Describe a tactic with its formats."""
    formats = " ".join("-" if f is None else str(f) for f in tactic.formats)
    return f"{tactic} | {formats}"


def _without_unknown_times(
    times: Sequence[float], tactics: Sequence[Tactic], chosen: Sequence[int]
) -> list[float]:
    """Replace unknown times: by infinity, or by estimates if no chosen tactic was measured.

    A chosen tactic with wrong results stays at infinity. If no time is left, the tactics that were
    not chosen take their estimates.
    """
    is_measured = any(math.isfinite(times[i]) for i in chosen)
    resolved = [
        seconds
        if not math.isnan(seconds)
        else math.inf
        if is_measured
        else tactic.estimated_seconds
        for seconds, tactic in zip(times, tactics, strict=True)
    ]
    if any(map(math.isfinite, resolved)):
        return resolved
    return [math.inf if i in chosen else t.estimated_seconds for i, t in enumerate(tactics)]


def is_not_timed(tactic: Tactic) -> bool:
    """Return whether a tactic is never timed: views cost nothing, references are the fallback."""
    return tactic.is_host_step or tactic.aliasing.value != "none"
