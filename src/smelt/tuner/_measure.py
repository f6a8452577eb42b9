"""Estimates say which candidates are worth a clock; the clock says which of them is best alone."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from smelt.engine import VERSION
from smelt.tuner._trial import Laboratory, Repeats
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node
    from smelt.tuner._timings import TimingCache


_COPIED: Final = TensorType(DType.FLOAT32, (1, 64, 56, 56))
"""Copies of larger and smaller tensors than this one are as fast, but for the smallest."""
_COPIED_BYTES: Final = 2 * 64 * 56 * 56 * 4


class MeasuringTimer:
    """Measures the few best candidates by their estimates; believes the estimates of the others."""

    def __init__(
        self,
        laboratory: Laboratory,
        cache: TimingCache,
        *,
        keep: int,
        repeats: int,
        averaged: int = 1,
        seconds: float = math.inf,
        seconds_each: float = 0.02,
        sample_seconds: float = 0.0,
    ) -> None:
        self.laboratory, self.cache = laboratory, cache
        self.keep = keep
        self.repeats = Repeats(repeats, averaged, seconds_each, sample_seconds)
        self.deadline = time.perf_counter() + seconds

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
        keys = {i: self._key(node, tactics[i]) for i in chosen}
        for i in chosen:
            times[i] = self.cache.get(keys[i]) or math.inf
        unknown = [i for i in chosen if self.cache.get(keys[i]) is None]
        if unknown and time.perf_counter() > self.deadline:
            for i in unknown:
                times[i] = tactics[i].cost_hint
        elif unknown:
            measured = self.laboratory.seconds(
                node, [tactics[i] for i in unknown], repeats=self.repeats
            )
            for i, seconds in zip(unknown, measured, strict=True):
                times[i] = seconds
                if math.isfinite(seconds):
                    self.cache.put(keys[i], seconds)
        return times if any(map(math.isfinite, times)) else [t.cost_hint for t in tactics]

    def copy_seconds(self, moved_bytes: int) -> float:
        """Seconds of a copy between formats, by the speed of one that was measured."""
        lab = self.laboratory
        key = f"copy of {_COPIED} | {lab.target.name}, {VERSION} {lab.backend.edition}"
        known = self.cache.get(key)
        if known is None:
            known = lab.copy_seconds(_COPIED, repeats=self.repeats)
            self.cache.put(key, known)
        return known * moved_bytes / _COPIED_BYTES

    def _promising(self, tactics: Sequence[Tactic]) -> list[int]:
        """The best by estimate of each family and arithmetic, for every combination of formats."""
        groups: dict[object, list[int]] = {}
        for i, tactic in enumerate(tactics):
            if not is_free(tactic):
                arithmetic = dict(tactic.parameters).get("arithmetic")
                key = (tactic.inputs, tactic.outputs, tactic.family, arithmetic)
                groups.setdefault(key, []).append(i)
        best = (sorted(g, key=lambda i: tactics[i].cost_hint)[: self.keep] for g in groups.values())
        return sorted(i for group in best for i in group)

    def _key(self, node: Node, tactic: Tactic) -> str:
        lab = self.laboratory
        where = f"{lab.target.name}, {VERSION} {lab.backend.edition}, {sorted(lab.sizes.items())}"
        return f"{node_text(node)} | {tactic_text(tactic)} | {where}"


def node_text(node: Node) -> str:
    """What a node computes: equal for nodes that take the same time."""
    inputs = ", ".join("-" if v is None else str(v.type) for v in node.inputs)
    return f"{node.op} on {inputs} -> {', '.join(str(v.type) for v in node.outputs)}"


def tactic_text(tactic: Tactic) -> str:
    """A tactic with its formats."""
    formats = " ".join("-" if f is None else str(f) for f in (*tactic.inputs, *tactic.outputs))
    return f"{tactic} | {formats}"


def is_free(tactic: Tactic) -> bool:
    """Whether there is nothing to measure: windows cost nothing, references are the last resort."""
    return tactic.is_reference or tactic.aliasing.value != "none"
