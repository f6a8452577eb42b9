"""How many processors a process may keep busy, on file systems that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt.devices.cpu import processor_count
from tests.support.cgroups import let_run_on, write_cgroup, write_old_cgroup

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root directory of a machine with eight processors."""
    monkeypatch.setattr("smelt.devices.cpu._processors._ROOT", tmp_path)
    let_run_on(range(8), monkeypatch)
    return tmp_path


def test_without_quotas_every_processor_of_the_affinity_counts(root: Path) -> None:
    assert processor_count() == 8
    write_cgroup(root, {"cpu.max": "max 100000"})
    assert processor_count() == 8


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("200000 100000", 2),
        ("250000 100000", 2),  # a third thread would stop all three for a quarter of the time
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("20000 10000", 2),
    ],
)
def test_a_quota_counts_whole_processors_and_one_at_least(
    root: Path, text: str, count: int
) -> None:
    write_cgroup(root, {"cpu.max": text})
    assert processor_count() == count


@pytest.mark.parametrize("text", ["", "100000", "0 0", "-1 100000", "two three", "1 2 3"])
def test_a_quota_that_says_nothing_is_none(root: Path, text: str) -> None:
    write_cgroup(root, {"cpu.max": text})
    assert processor_count() == 8


def test_the_least_quota_of_all_levels_counts(root: Path) -> None:
    files = {
        "kube/pod/box/cpu.max": "500000 100000",
        "kube/pod/cpu.max": "300000 100000",
        "kube/cpu.max": "max 100000",
    }
    write_cgroup(root, files, path="/kube/pod/box")
    assert processor_count() == 3


def test_a_container_sees_its_own_cgroup_at_the_top(root: Path) -> None:
    # Without a namespace of its own the path counts from the host's top, and so does the mount.
    write_cgroup(root, {"cpu.max": "300000 100000"}, path="/docker/4f", top="/docker/4f")
    assert processor_count() == 3
    write_cgroup(root, {"cpu.max": "200000 100000"}, path="/../elsewhere")
    assert processor_count() == 2


def test_a_quota_of_version_1_counts(root: Path) -> None:
    files = {
        "docker/4f/cpu.cfs_quota_us": "400000",
        "docker/4f/cpu.cfs_period_us": "100000",
        "docker/cpu.cfs_quota_us": "-1",
        "docker/cpu.cfs_period_us": "100000",
    }
    write_old_cgroup(root, files, path="/docker/4f")
    assert processor_count() == 4


def test_the_affinity_may_be_less_than_the_quota(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cgroup(root, {"cpu.max": "600000 100000"})
    let_run_on((1, 5), monkeypatch)
    assert processor_count() == 2


def test_unreadable_files_are_no_quota(root: Path) -> None:
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_bytes(b"\xff:::\n0::/a\n")
    (folder / "mountinfo").write_bytes(b"nonsense\n1 2 - cgroup2\n\xff - cgroup2 x rw\n")
    assert processor_count() == 8
