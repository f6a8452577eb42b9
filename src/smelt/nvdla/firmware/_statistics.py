"""Statistics of a task: times and counters of its operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.nvdla.loadable import Descriptor, OperationType


@dataclass(frozen=True, slots=True)
class OperationStatistics:
    """Statistics of one operation; times are in seconds."""

    index: int
    roi: int
    op_type: OperationType
    group: int
    started_s: float
    """Time from the start of the task until the operation was enabled."""
    finished_s: float
    """Time from the start of the task until the operation's completion was handled."""
    counters: Descriptor | None = None
    """Performance counters of the engine, or None if they were not enabled."""


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """Statistics of one task; its operations are in the order of completion."""

    operations: tuple[OperationStatistics, ...]
    num_interrupts: int
    duration_s: float
