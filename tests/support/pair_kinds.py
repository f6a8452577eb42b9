"""Drafts of networks with fused pairs of two kinds, which nobody builds."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from smelt.backends import Tactic
from smelt.builder._options import TuningEffort
from smelt.builder._toolchain import FusedPairAlternatives, TunedGraph
from smelt.tuner import TacticChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.builder._toolchain import Toolchain
    from smelt.types import Limit


def fits(_limit: Limit) -> bool:
    """Every node's tensors are small."""
    return True


class PairKinds:
    """Chains of two kinds; a draft's graph is called by those that it has."""

    def __init__(self, *nodes: Any) -> None:
        self.asked: list[float] = []
        self.nodes = nodes
        """Of every draft's graph."""

    def faster(self, most: float) -> list[str]:
        self.asked.append(most)
        return ["a", "b"]

    def draft(self, kinds: Sequence[Any] = ()) -> TunedGraph:
        tuning: Any = SimpleNamespace(sizes={}, deadline=math.inf, fits=fits)
        tuning.timings = tuning.fits_workspace = tuning.progress = None
        tuning.effort = TuningEffort()
        tuning.graph = SimpleNamespace(name="".join(kinds) or "apart", nodes=self.nodes)
        return TunedGraph(
            tuning, TacticChoice(dict.fromkeys(self.nodes, Tactic("fused_pair", (), (), ())))
        )

    def best(self, tools: Toolchain) -> TunedGraph:
        others: Any = FusedPairAlternatives(self, self.draft)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return tools.tune_in_network(replace(self.draft(), alternatives=others), 0.0)
