"""Timer that returns cost-model estimates and measures nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node


STEP_SECONDS: Final = 1.5e-6
"""Seconds of a CPU step that does almost no work. Chosen without a measurement."""
_MOVED_BYTES_PER_SECOND: Final = 5e10
"""Bytes per second of copies within a CPU's caches. Half of the rate that was measured for a copy
within the caches of the development machine (docs/lab/choosing-tactics.md)."""


class CostModelTimer:
    """Returns the families' estimates: for absent devices, and for ``tune="none"``."""

    def __init__(
        self,
        *,
        copy_launch_seconds: float = STEP_SECONDS,
        bytes_per_second: float = _MOVED_BYTES_PER_SECOND,
    ) -> None:
        """Create a timer. The defaults describe a CPU.

        Args:
            copy_launch_seconds: fixed seconds of a copy step.
            bytes_per_second: rate of copies, counting bytes read and written.
        """
        self._copy_launch_seconds, self._bytes_per_second = copy_launch_seconds, bytes_per_second

    def announce(self, work: Sequence[tuple[Node, Sequence[Tactic]]]) -> None:
        """Do nothing: there are no measurements to prepare."""

    def seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Return the estimated seconds of the tactics."""
        del node
        return [tactic.estimated_seconds for tactic in tactics]

    def verified_seconds(self, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        """Return the estimated seconds: nothing is measured, so nothing is verified."""
        return self.seconds(node, tactics)

    def wrong_result_reason(self, node: Node) -> str:
        """Return an empty string: no tactic is run."""
        del node
        return ""

    def copy_seconds(self, moved_bytes: int) -> float:
        """Return the seconds of a step that moves ``moved_bytes``."""
        return self._copy_launch_seconds + moved_bytes / self._bytes_per_second
