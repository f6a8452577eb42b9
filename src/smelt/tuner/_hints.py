"""Costs without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node


_MOVED_BYTES_PER_SECOND: Final = 5e10


class HintTimer:
    """Believes the families' estimates: for absent machines, and for ``tune="none"``."""

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Nothing: there will be no measurements."""

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """The cost hints."""
        del node
        return [tactic.cost_hint for tactic in tactics]

    def copy_seconds(self, moved_bytes: int) -> float:
        """What a copy within a processor's caches takes today."""
        return moved_bytes / _MOVED_BYTES_PER_SECOND
