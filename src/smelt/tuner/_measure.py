"""Estimates say which candidates are worth a clock; the clock says which of them is best alone."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from smelt.tuner._specimen import Repeats
from smelt.types import TensorType, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node
    from smelt.tuner._timings import TimingCache
    from smelt.types import Limit


_LOG = logging.getLogger(__name__)
LONG_SECONDS: Final = 8e-6


class Bench(Protocol):
    """Where tactics of single nodes are tried: a laboratory of some device."""

    copied: ClassVar[tuple[TensorType, TensorType]]
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

    def compile_ahead(self, work: Sequence[tuple[Node, Tactic]], *, deadline: float) -> None:
        """Compile what is going to be timed, as much as can be until ``deadline``."""
        ...

    def seconds(self, node: Node, tactics: Sequence[Tactic], *, repeats: Repeats) -> list[float]:
        """The time of each tactic; infinity for one that is wrong, NaN where there was no time."""
        ...

    def copy_seconds(self, kind: TensorType, *, repeats: Repeats) -> float:
        """The time of a copy of a tensor between the model's axis order and channels last."""
        ...


class MeasuringTimer:
    """Measures the few best candidates by their estimates; believes the estimates of the others."""

    def __init__(
        self,
        laboratory: Bench,
        cache: TimingCache,
        *,
        keep: int,
        keep_long: int | None = None,
        repeats: int,
        averaged: int = 1,
        seconds: float = math.inf,
        seconds_each: float = 0.02,
        sample_seconds: float = 0.0,
    ) -> None:
        """Measure candidates of single nodes.

        Args:
            laboratory: where they are tried.
            cache: what was measured, and will be.
            keep: how many are measured of each family, arithmetic and formats.
            keep_long: the same where even the best takes long: estimates are surer there.
            repeats: how often each is measured.
            averaged: of how many runs each time is the mean.
            seconds: time for everything.
            seconds_each: time for a candidate, after two repeats.
            sample_seconds: a mean is taken of more runs where it would last less.
        """
        self.laboratory, self.cache = laboratory, cache
        self.keep = keep
        self.keep_long = keep if keep_long is None else keep_long
        self.repeats = Repeats(repeats, averaged, seconds_each, sample_seconds)
        self.deadline = time.perf_counter() + seconds
        self._rejections: dict[str, str] = {}

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Compile what will have to be measured."""
        wanted: dict[str, tuple[Node, Tactic]] = {}
        for node, tactics in work:
            for i in self._promising(tactics):
                key = self._key(node, tactics[i])
                if self.cache.get(key) is None:
                    wanted.setdefault(key, (node, tactics[i]))
        self.laboratory.compile_ahead(list(wanted.values()), deadline=self.deadline)

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Seconds of the most promising tactics of each format, infinity for the others."""
        times = [t.cost_hint if is_free(t) else math.inf for t in tactics]
        chosen = self._promising(tactics)
        for i, seconds in self._measured(node, tactics, chosen).items():
            times[i] = seconds
        self._rejections.pop(node.name, None)
        if chosen and all(times[i] == math.inf for i in chosen):
            best = min(chosen, key=lambda i: tactics[i].cost_hint)
            reason = self.laboratory.refused.get((node.name, str(tactics[best])), "")
            self._rejections[node.name] = f"{tactics[best]}: {reason}"
        return _settled(times, tactics, chosen)

    def rejection(self, node: Node) -> str:
        """Why all kernels that were tried for a node are wrong; empty where one is right."""
        return self._rejections.get(node.name, "")

    def proven_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Seconds by the clock; infinity for what is wrong, and for what was not tried."""
        known = self._measured(node, tactics, self._promising(tactics))
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
        limit = self.laboratory.trial_limit
        if (size := tensor_bytes(node, self.laboratory.sizes)) > limit.most:
            _LOG.info("%s is not timed: its tensors have %s", node, limit.excess(size))
            return times
        measured = self.laboratory.seconds(
            node, [tactics[i] for i in unknown], repeats=self.repeats
        )
        for i, seconds in zip(unknown, measured, strict=True):
            times[i] = seconds
            if math.isfinite(seconds):
                self.cache.put(keys[i], seconds)
        return times

    def copy_seconds(self, moved_bytes: int) -> float:
        """Seconds of a copy between formats, by those that were measured."""
        small, large = self.laboratory.copied
        least, most = self._copy_of(small), self._copy_of(large)
        share = (moved_bytes - _moved_bytes(small)) / (_moved_bytes(large) - _moved_bytes(small))
        return least + max(0.0, most - least) * max(0.0, share)

    def _copy_of(self, kind: TensorType) -> float:
        key = f"copy of {kind} | {self.laboratory.where}"
        known = self.cache.get(key)
        if known is None:
            known = self.laboratory.copy_seconds(kind, repeats=self.repeats)
            self.cache.put(key, known)
        return known

    def _promising(self, tactics: Sequence[Tactic]) -> list[int]:
        """The best by estimate of each family and arithmetic, for every combination of formats."""
        groups: dict[object, list[int]] = {}
        for i, tactic in enumerate(tactics):
            if not is_free(tactic):
                arithmetic = dict(tactic.parameters).get("arithmetic")
                key = (tactic.inputs, tactic.outputs, tactic.family, arithmetic)
                groups.setdefault(key, []).append(i)
        best: list[int] = []
        for group in groups.values():
            group.sort(key=lambda i: tactics[i].cost_hint)
            is_long = tactics[group[0]].cost_hint > LONG_SECONDS
            best += group[: self.keep_long if is_long else self.keep]
        return sorted(best)

    def _key(self, node: Node, tactic: Tactic) -> str:
        lab = self.laboratory
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


def _settled(
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


def is_free(tactic: Tactic) -> bool:
    """Whether there is nothing to measure: windows cost nothing, references are the last resort."""
    return tactic.is_reference or tactic.aliasing.value != "none"
