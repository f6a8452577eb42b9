"""Machines with as many processors as a test needs, and file systems that tell of quotas."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pytest


def let_run_on(processors: Iterable[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process believe that it may run on these processors."""
    affinity = frozenset(processors)

    def affinity_of(_process: int) -> frozenset[int]:
        return affinity

    monkeypatch.setattr(os, "sched_getaffinity", affinity_of)


def write_cgroup(root: Path, files: Mapping[str, str], *, path: str = "/", top: str = "/") -> None:
    """Write what a process in the cgroup ``path`` of version 2 sees below ``root``.

    Args:
        root: the fake root directory.
        files: contents by name; a name may lead upwards (``../cpu.max``).
        path: the process's cgroup, as /proc/self/cgroup has it.
        top: the cgroup that is mounted at /sys/fs/cgroup.
    """
    _write_proc(
        root, f"0::{path}", f"31 23 0:41 {top} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw"
    )
    _write_files(root / "sys/fs/cgroup", files)


def write_old_cgroup(
    root: Path, files: Mapping[str, str], *, path: str = "/", top: str = "/"
) -> None:
    """The same in version 1, where processor time has a file system of its own."""
    mounts = (
        "30 23 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
        f"31 23 0:30 {top} /sys/fs/cgroup/cpu\\040time rw - cgroup cgroup rw,cpu,cpuacct",
    )
    _write_proc(root, f"5:cpuset:/\n4:cpu,cpuacct:{path}\n0::/", "\n".join(mounts))
    _write_files(root / "sys/fs/cgroup/cpu time", files)


def _write_proc(root: Path, cgroup: str, mounts: str) -> None:
    folder = root / "proc/self"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup").write_text(f"{cgroup}\n")
    (folder / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounts}\n")


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
