"""What a task tells when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.nvdla.loadable import Descriptor, OperationType


@dataclass(frozen=True, slots=True)
class OperationStatistics:
    """One operation, in the order of completion."""

    index: int
    roi: int
    op_type: OperationType
    group: int
    started_s: float
    """From the start of the task to the operation's being enabled."""
    finished_s: float
    """From the start of the task to the handling of its completion."""
    counters: Descriptor | None = None
    """What the engine counted, if it was asked to."""


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """One task."""

    operations: tuple[OperationStatistics, ...]
    num_interrupts: int
    duration_s: float
