"""Costs without a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node


STEP_SECONDS: Final = 1.5e-6
"""What a step of a processor takes that does next to nothing."""
_MOVED_BYTES_PER_SECOND: Final = 5e10
"""Copies within a processor's caches."""


class CostModelTimer:
    """Believes the families' estimates: for absent machines, and for ``tune="none"``."""

    def __init__(
        self,
        *,
        step_seconds: float = STEP_SECONDS,
        bytes_per_second: float = _MOVED_BYTES_PER_SECOND,
    ) -> None:
        """Believe also that copies go at this rate. The defaults are a processor's."""
        self._step_seconds, self._bytes_per_second = step_seconds, bytes_per_second

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Nothing: there will be no measurements."""

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """The cost hints."""
        del node
        return [tactic.cost_hint for tactic in tactics]

    def verified_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """The same: nothing is proven without a clock."""
        return self.seconds(node, tactics)

    def wrong_result_reason(self, node: Node) -> str:
        """Nothing: nothing is tried."""
        del node
        return ""

    def copy_seconds(self, moved_bytes: int) -> float:
        """A step, and the time that the bytes take."""
        return self._step_seconds + moved_bytes / self._bytes_per_second
