"""How far a build is: nothing for the first second, then a bar, or lines where no one watches."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from smelt.cli._console import say
from smelt.types import Closeable, override

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_SECONDS: Final = 1.0
_REFRESH_SECONDS: Final = 0.1


class ProgressLine(Closeable):
    """A listener of builds; a context manager, because a terminal is to be left tidy."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Show nothing when ``quiet``."""
        self._quiet = quiet
        self._start = time.perf_counter()
        self._stages: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, float] = {}
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: set[str] = set()
        self._drawn = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Hear that ``done`` of ``total`` parts of ``stage`` are done."""
        self._stages[stage] = (done, total)
        seconds = time.perf_counter() - self._start
        if done == total:
            self._ends[stage] = seconds
        if self._quiet or seconds < _PATIENCE_SECONDS:
            return
        if sys.stderr.isatty():
            self._draw()
        else:
            self._tell()

    def _draw(self) -> None:
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
                # No thread of its own: it would disturb what is being timed.
                auto_refresh=False,
            )
            self._bar.start()
        for stage, (done, total) in self._stages.items():
            if stage not in self._tasks:
                self._tasks[stage] = self._bar.add_task(stage, total=total)
            self._bar.update(self._tasks[stage], completed=done, total=total)
        now = time.perf_counter()
        if now - self._drawn >= _REFRESH_SECONDS:
            self._bar.refresh()
            self._drawn = now

    def _tell(self) -> None:
        """Write a line for each stage that is complete and not yet told."""
        for stage, (done, total) in self._stages.items():
            if done == total and stage not in self._told:
                self._told.add(stage)
                say(f"{stage} {done}/{total} (after {self._ends[stage]:.1f} s)")

    @override
    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
