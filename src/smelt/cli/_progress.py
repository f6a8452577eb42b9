"""Progress of a build on standard error.

Nothing is shown in the first second. Later, a terminal gets a progress bar; other streams get a
line for each completed stage.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from smelt.cli._console import say
from smelt.types import Closeable, override

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_SECONDS: Final = 1.0
"""Time before the first output, in seconds."""
_REFRESH_SECONDS: Final = 0.1
"""Shortest time between two updates of the bar, in seconds."""


class ProgressLine(Closeable):
    """Progress callback of builds; closing it, or the end of ``with``, removes the bar."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Show nothing when ``quiet``."""
        self._quiet = quiet
        self._start = time.perf_counter()
        self._stages: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, float] = {}
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._written: set[str] = set()
        self._refreshed = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` parts of ``stage`` are complete."""
        self._stages[stage] = (done, total)
        seconds = time.perf_counter() - self._start
        if done == total:
            self._ends[stage] = seconds
        if self._quiet or seconds < _PATIENCE_SECONDS:
            return
        if sys.stderr.isatty():
            self._draw()
        else:
            self._write_lines()

    def _draw(self) -> None:
        """Update the progress bar, which is created on the first call."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description:<8}"),
                BarColumn(),
                MofNCompleteColumn(),
                Elapsed(),
                console=Console(stderr=True),
                transient=True,
                # A refresh thread would disturb the timing of candidates.
                auto_refresh=False,
            )
            self._bar.start()
        for stage, (done, total) in self._stages.items():
            if stage not in self._tasks:
                self._tasks[stage] = self._bar.add_task(stage, total=total)
            self._bar.update(self._tasks[stage], completed=done, total=total)
        now = time.perf_counter()
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._bar.refresh()
            self._refreshed = now

    def _write_lines(self) -> None:
        """Write a line for each newly completed stage."""
        for stage, (done, total) in self._stages.items():
            if done == total and stage not in self._written:
                self._written.add(stage)
                say(f"{stage} {done}/{total} (after {self._ends[stage]:.1f} s)")

    @override
    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
