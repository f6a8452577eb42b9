"""How many processors this process may keep busy: its affinity, and its cgroups' quota of time.

A quota gives all threads together so much processor time in each period (100 ms by default).
Threads beyond it use that time up sooner, and then all of them stand still until the next period,
one in the middle of what the others wait for. So a fraction is rounded down, to one at least.
"""

from __future__ import annotations

import os
import re
from math import inf
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from smelt import config

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
"""Where proc and the cgroups' file systems are mounted; tests have another."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def available_processors() -> frozenset[int]:
    """Return the processors that this thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def processor_count() -> int:
    """Return how many processors this thread and those that it starts may keep busy."""
    return max(1, int(min(len(available_processors()), _quota())))


def default_thread_count() -> int:
    """Return the threads of a run for which the caller says no number.

    Raises:
        SmeltError: SMELT_THREADS is not a number of threads.
    """
    return config.thread_count() or processor_count()


def _quota() -> float:
    """The least quota of this process's cgroups and those around them, in processors."""
    limits = [_limit(folder) for top, inner in _cgroups() for folder in _upwards(inner, top)]
    return min(limits, default=inf)


def _limit(cgroup: Path) -> float:
    """The processor time that a cgroup may use in a period, by that period."""
    if text := _text(cgroup / "cpu.max"):  # version 2: "200000 100000", or "max 100000"
        words = text.split()
    else:
        words = [_text(cgroup / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:
        return inf  # "max", or no files at all
    return quota / period if quota > 0 and period > 0 else inf  # version 1 writes -1 for no limit


def _cgroups() -> Iterator[tuple[Path, Path]]:
    """The cgroups that may limit processor time, each with the topmost one that can be seen."""
    paths: dict[str, str] = {}
    for line in _text(_ROOT / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    for line in _text(_ROOT / "proc/self/mountinfo").splitlines():
        here, _, there = line.partition(" - ")
        fields, kinds = here.split(" "), there.split(" ")
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in paths:
            continue
        if kinds[0] == "cgroup2" or "cpu" in kinds[2].split(","):
            top = _ROOT / _unescaped(fields[4]).lstrip("/")
            yield top, top / _inner(paths[kinds[0]], _unescaped(fields[3]))


def _inner(path: str, mounted: str) -> PurePosixPath:
    """A cgroup's path below the one that is mounted; that one's where it is outside."""
    try:
        inner = PurePosixPath(path).relative_to(mounted)
    except ValueError:
        return PurePosixPath()
    return PurePosixPath() if ".." in inner.parts else inner


def _upwards(inner: Path, top: Path) -> Iterator[Path]:
    yield inner
    while inner != top:
        inner = inner.parent
        yield inner


def _text(path: Path) -> str:
    """What a file holds; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
