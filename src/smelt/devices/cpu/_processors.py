"""Number of CPUs that this process may use, by its affinity and the CPU quota of its cgroups.

A quota limits the CPU time of all threads together in each period (100 ms by default). More threads
than the quota use it up sooner, and are then all suspended until the next period, even while others
wait for one of them. A fractional quota is therefore rounded down, to at least one.
"""

from __future__ import annotations

import os
import re
from math import inf
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from smelt import config
from smelt.signal_errors import pass_on_handler_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
"""Root of the paths of proc and cgroup file systems; tests replace it."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def available_processors() -> frozenset[int]:
    """Return the CPUs that this thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def processor_count() -> int:
    """Return the number of CPUs that this thread and its child threads may use."""
    return max(1, int(min(len(available_processors()), _cpu_quota())))


def default_thread_count() -> int:
    """Return the default number of threads of a run.

    Raises:
        SmeltError: SMELT_THREADS is not a valid number of threads.
    """
    return config.thread_count() or processor_count()


def _cpu_quota() -> float:
    """Return the least quota of this process's cgroups and their parents, in CPUs."""
    limits = [_cgroup_limit(folder) for top, inner in _cgroups() for folder in _upwards(inner, top)]
    return min(limits, default=inf)


def _cgroup_limit(cgroup: Path) -> float:
    """Return the quota of a cgroup divided by its period; infinity if there is no limit."""
    if text := _read_text(cgroup / "cpu.max"):  # version 2: "200000 100000", or "max 100000"
        words = text.split()
    else:
        words = [_read_text(cgroup / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    # `int` is asked only for numbers: of others it shows the text in a ValueError, and shows no
    # error of a signal handler that comes meanwhile.
    if len(words) != 2 or not all(map(_INTEGER.fullmatch, words)):
        return inf  # "max", or no files at all
    quota, period = map(int, words)
    return quota / period if quota > 0 and period > 0 else inf  # version 1 writes -1 for no limit


def _cgroups() -> Iterator[tuple[Path, Path]]:
    """Yield the cgroups that may limit CPU time, each with the topmost visible one."""
    paths: dict[str, str] = {}
    for line in _read_text(_ROOT / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "cpu" in controllers.split(","):
            paths["cgroup"] = path
    for line in _read_text(_ROOT / "proc/self/mountinfo").splitlines():
        here, _, there = line.partition(" - ")
        fields, kinds = here.split(" "), there.split(" ")
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in paths:
            continue
        if kinds[0] == "cgroup2" or "cpu" in kinds[2].split(","):
            top = _ROOT / _unescaped(fields[4]).lstrip("/")
            yield top, top / _relative_cgroup(paths[kinds[0]], _unescaped(fields[3]))


def _relative_cgroup(path: str, mounted: str) -> PurePosixPath:
    """Return a cgroup's path relative to the mounted one; empty if it is outside."""
    # `relative_to` of Python 3.12 loses an IndexError of a signal handler.
    parts, top = PurePosixPath(path).parts, PurePosixPath(mounted).parts
    inner = parts[len(top) :] if parts[: len(top)] == top else ()
    return PurePosixPath() if ".." in inner else PurePosixPath(*inner)


def _upwards(inner: Path, top: Path) -> Iterator[Path]:
    yield inner
    while inner != top:
        inner = inner.parent
        yield inner


def _read_text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        pass_on_handler_error(error)
        return ""


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
