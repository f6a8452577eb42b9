"""The timing cache: a file that people can read, that merges, and that never stops a build."""

from __future__ import annotations

import errno
import json
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from smelt.engine import _atomic_files, locked_folder, write_atomically
from smelt.errors import BuildError
from smelt.tuner import TimingCache, _timing_cache, check_timings
from smelt.tuner._timing_cache import read_timings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "timings.json"
    cache = TimingCache(path)
    cache.put("conv on x", 1.5e-5)
    cache.save()
    assert TimingCache(path).get("conv on x") == 1.5e-5
    assert TimingCache(path).get("another") is None
    assert json.loads(path.read_text())["seconds"] == {"conv on x": 1.5e-5}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[1, 2",
        b"[]",
        b"{}",
        b'{"format": "another", "seconds": {"a": 1}}',
        b'{"format": "smelt timing cache 1", "seconds": []}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_no_cache_is_only_warned_about(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "timings.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        cache = TimingCache(path)
    assert not cache.entries
    assert "is not used" in caplog.text
    cache.put("a", 1.0)
    cache.save()
    assert TimingCache(path).get("a") == 1.0


def test_unsound_entries_are_left_out_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "timings.json"
    seconds = {"good": 2e-6, "text": "fast", "negative": -1, "none": None, "list": [1]}
    text = json.dumps({"format": "smelt timing cache 1", "seconds": seconds})
    path.write_text(text.replace('"good"', '"endless": Infinity, "no": NaN, "good"'))
    assert read_timings(path) == {"good": 2e-6}


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "timings.json"
    first, second = TimingCache(path), TimingCache(path)
    first.put("a", 1.0)
    second.put("b", 2.0)
    first.save()
    second.save()
    assert read_timings(path) == {"a": 1.0, "b": 2.0}


def test_a_writer_waits_while_another_merges_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timings.json"
    first, second = TimingCache(path), TimingCache(path)
    first.put("a", 1.0)
    second.put("b", 2.0)
    other = threading.Thread(target=second.save)

    def write(target: Path, parts: Iterator[bytes]) -> None:
        if threading.current_thread() is not other:
            other.start()
            other.join(0.2)  # without a lock it ends, and its entry is overwritten
        write_atomically(target, parts)

    monkeypatch.setattr(_timing_cache, "write_atomically", write)
    monkeypatch.setattr(_atomic_files, "_LOCK_SECONDS", 60)
    first.save()
    other.join()
    assert read_timings(path) == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_writer_that_keeps_its_lock_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(_atomic_files, "_LOCK_SECONDS", seconds)
    cache = TimingCache(tmp_path / "timings.json")
    cache.put("a", 1.0)
    with locked_folder(tmp_path):
        cache.save()
    assert TimingCache(cache.path).get("a") == 1.0


def test_a_file_that_cannot_be_read_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timings.json"
    check_timings(path)
    path.write_text("unreadable")

    def refuse(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_timing_cache, "read_file", refuse)
    with pytest.raises(BuildError, match=r"\(Permission denied\) and would be overwritten"):
        check_timings(path)


def test_others_may_read_a_cache_as_they_may_other_new_files(tmp_path: Path) -> None:
    cache = TimingCache(tmp_path / "timings.json")
    cache.put("a", 1.0)
    cache.save()
    (tmp_path / "new").touch()
    modes = [(tmp_path / name).stat().st_mode for name in ("timings.json", "new")]
    assert modes[0] == modes[1]


def test_merging_keeps_what_was_measured_here(tmp_path: Path) -> None:
    cache, other = (TimingCache(tmp_path / "timings.json") for _ in range(2))
    for key, seconds in (("a", 9.0), ("b", 2.0)):
        other.put(key, seconds)
    other.save()
    cache.put("a", 1.0)
    cache.save()
    assert cache.entries == {"a": 1.0, "b": 2.0}


def test_a_place_that_cannot_be_written_is_only_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = TimingCache(tmp_path / "file" / "timings.json")
    cache.put("a", 1.0)
    with caplog.at_level(logging.WARNING):
        cache.save()
    assert f"the timing cache {cache.path} is not saved" in caplog.text
    assert cache.get("a") == 1.0


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timings.json"
    cache = TimingCache(path)
    cache.put("a", 1.0)
    cache.save()
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    cache.put("b", 2.0)
    cache.save()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["timings.json"]


def test_nothing_is_written_without_a_path_or_without_news(tmp_path: Path) -> None:
    TimingCache().save()
    path = tmp_path / "timings.json"
    TimingCache(path).save()
    assert not path.exists()
