"""Files that appear whole, and what is left of processes that died while they wrote one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from smelt.engine import sweep_drafts, write_atomically
from smelt.engine._drafts import open_draft

ROOT = Path(__file__).resolve().parents[2]
_WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from smelt.engine._drafts import open_draft

    with open_draft(Path(sys.argv[1])) as (file, draft):
        file.write(b"half")
        file.flush()
        print(draft, flush=True)
        sys.stdin.read()
""")


def _start_writer(target: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that is half done."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_draft_of_a_dead_process_is_swept_by_the_next_writer(tmp_path: Path) -> None:
    target, other = tmp_path / "m.engine", tmp_path / "other.engine"
    dead, draft = _start_writer(target)
    living, kept = _start_writer(target)
    beside, others = _start_writer(other)
    for process in (dead, beside):
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert draft.exists()
    write_atomically(target, iter([b"whole"]))
    assert target.read_bytes() == b"whole"
    assert not draft.exists()
    assert kept.exists(), "its writer lives"
    assert others.exists(), "it is another file's"
    sweep_drafts(tmp_path)
    assert kept.exists()
    assert not others.exists()
    living.communicate("")
    assert living.returncode == 0
    assert sorted(tmp_path.iterdir()) == [target]


def test_what_only_looks_like_a_draft_stays(tmp_path: Path) -> None:
    names = (".m.part", "m.0123456789ab.part", ".m.0123456789AB.part", ".m.0123456789ab.part.x")
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".m.000000000000.part").mkdir()
    (tmp_path / ".m.111111111111.part").symlink_to(tmp_path / names[0])
    sweep_drafts(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(names) + 2


def test_a_draft_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open
    taken: list[str | Path] = []

    def slow_open(path: str | Path, flags: int, mode: int = 0o777) -> int:
        number = real_open(path, flags, mode)
        if flags & os.O_EXCL and not taken:
            taken.append(path)
            sweep_drafts(tmp_path)  # as another process would between opening and locking
            assert not Path(path).exists()
        return number

    monkeypatch.setattr(os, "open", slow_open)
    with open_draft(tmp_path / "m.engine") as (file, draft):
        file.write(b"whole")
        file.flush()
        assert draft.read_bytes() == b"whole"
    assert taken


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_mode_that_the_process_gives_files(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "m", iter([b"x"]))
        with open_draft(tmp_path / "k", 0o600) as (_, draft):
            assert draft.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o666 & ~mask
