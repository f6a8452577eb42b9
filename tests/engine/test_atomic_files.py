"""Files that appear whole, and what is left of processes that died while they wrote one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from smelt.engine import _file_mapping, remove_stale_drafts, write_atomically
from smelt.engine._atomic_files import open_atomic_file
from smelt.engine._file_mapping import map_file
from smelt.errors import SmeltError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from typing import BinaryIO

_ONLY_LINUX = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="open files have no names here"
)
ROOT = Path(__file__).resolve().parents[2]
_WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from smelt.engine._atomic_files import open_atomic_file

    with open_atomic_file(Path(sys.argv[1])) as draft:
        draft.file.write(b"half")
        draft.file.flush()
        print(draft.path, flush=True)
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
    remove_stale_drafts(tmp_path)
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
    remove_stale_drafts(tmp_path)
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
            remove_stale_drafts(tmp_path)  # as another process would between opening and locking
            assert not Path(path).exists()
        return number

    monkeypatch.setattr(os, "open", slow_open)
    with open_atomic_file(tmp_path / "m.engine") as draft:
        draft.file.write(b"whole")
        draft.file.flush()
        assert draft.path.read_bytes() == b"whole"
    assert taken


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_mode_that_the_process_gives_files(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "m", iter([b"x"]))
        with open_atomic_file(tmp_path / "k", 0o644) as draft:
            draft.link_target()
    finally:
        os.umask(before)
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o666 & ~mask
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o644 & ~mask


def test_only_the_owner_opens_a_draft(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_atomic_file(tmp_path / "m") as draft:
            assert draft.path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("how", ["LOCK_SH", "LOCK_EX"])
def test_a_draft_that_a_neighbour_locks_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    real_open = os.open
    held: list[int] = []

    def open_and_lock(path: str | Path, flags: int, mode: int = 0o777) -> int:
        number = real_open(path, flags, mode)
        if flags & os.O_EXCL and len(held) < most:
            held.append(real_open(path, os.O_RDONLY))
            fcntl.flock(held[-1], getattr(fcntl, how))
        return number

    monkeypatch.setattr(os, "open", open_and_lock)
    most = 3
    write_atomically(tmp_path / "m", iter([b"whole"]))
    assert len(held) == most
    most = 1000
    with pytest.raises(SmeltError, match="lock or remove each temporary file in the same folder"):
        write_atomically(tmp_path / "m", iter([b"another"]))
    assert (tmp_path / "m").read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]
    for number in held:
        os.close(number)


@pytest.mark.parametrize("character", ["a", "\xe9", "\u4e16", "\N{ROCKET}", "\udcff"])
def test_a_name_as_long_as_a_system_takes_is_written(tmp_path: Path, character: str) -> None:
    count = 255 // len(os.fsencode(character))
    target = tmp_path / (character * count)
    write_atomically(target, iter([b"whole"]))
    assert target.read_bytes() == b"whole"
    dead, draft = _start_writer(target)
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    assert draft.exists()
    write_atomically(target, iter([b"again"]))
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_no_draft(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".m.0123456789ab.part")
    write_atomically(tmp_path / "m", iter([b"whole"]))
    assert (tmp_path / "m").read_bytes() == b"whole"


def test_a_pipe_that_nobody_reads_is_not_awaited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.types._files._READER_SECONDS", 0.01)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SmeltError, match="no process reads the pipe"):
        write_atomically(tmp_path / "pipe", iter([b"x"]))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A file that is open behind a line of text, as a shell redirects to it."""
    path = tmp_path / "redirected"
    with path.open("wb", buffering=0) as file:
        file.write(b"before\n")
        yield path, file


def _descriptor(number: int, tmp_path: Path, how: str) -> Path:
    """A name of an open file: its own one, or links to it in a folder of the test."""
    name = Path(f"/proc/self/fd/{number}")
    if how == "by itself":
        return name
    if how == "in a linked folder":
        (tmp_path / "fd").symlink_to(name.parent)
        return tmp_path / "fd" / name.name
    (tmp_path / "stdout").symlink_to(name)
    if how == "by a link":
        return tmp_path / "stdout"
    (tmp_path / "mine").symlink_to("stdout")
    return tmp_path / "mine"


@_ONLY_LINUX
@pytest.mark.parametrize("how", ["by itself", "in a linked folder", "by a link", "by two links"])
def test_what_a_process_has_open_is_written_into_and_not_replaced(
    tmp_path: Path, opened: tuple[Path, BinaryIO], how: str
) -> None:
    path, file = opened
    target = _descriptor(file.fileno(), tmp_path, how)
    links = {p: os.readlink(p) for p in tmp_path.iterdir() if p.is_symlink()}
    write_atomically(target, iter([b"one ", memoryview(b"two\n")]))
    file.write(b"after\n")
    assert path.read_bytes() == b"before\none two\nafter\n"
    assert {p: os.readlink(p) for p in tmp_path.iterdir() if p.is_symlink()} == links
    assert len(list(tmp_path.iterdir())) == len(links) + 1


@_ONLY_LINUX
def test_what_another_process_has_open_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "redirected"
    with path.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "print('before', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=file,
        )
    while not path.stat().st_size:
        assert process.poll() is None
    (tmp_path / "stdout").symlink_to(f"/proc/{process.pid}/fd/1")
    write_atomically(tmp_path / "stdout", iter([b"whole"]))
    process.communicate(b"\n")
    assert path.read_bytes() == b"before\nwhole"
    assert (tmp_path / "stdout").is_symlink()


@_ONLY_LINUX
def test_a_link_to_a_closed_file_is_not_replaced(tmp_path: Path) -> None:
    with (tmp_path / "m").open("wb") as file:
        number = os.dup(file.fileno())
    os.close(number)
    (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{number}")
    with pytest.raises(SmeltError, match="stdout cannot be written"):
        write_atomically(tmp_path / "stdout", iter([b"whole"]))
    assert (tmp_path / "stdout").is_symlink()


@_ONLY_LINUX
def test_a_file_in_an_open_folder_is_replaced_whole(tmp_path: Path) -> None:
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        for text in (b"a longer text", b"whole"):
            write_atomically(f"/proc/self/fd/{number}/m", iter([text]))
    finally:
        os.close(number)
    assert (tmp_path / "m").read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]


def test_a_link_to_an_ordinary_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"kept")
    for name, target in (("link", "m"), ("loop", "loop"), ("nowhere", "none")):
        (tmp_path / name).symlink_to(target)
        write_atomically(tmp_path / name, iter([b"whole"]))
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == b"whole"
    assert (tmp_path / "m").read_bytes() == b"kept"


def test_a_draft_that_becomes_shorter_as_it_is_laid_out_ends_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 << 20

    def map_and_truncate(number: int) -> mmap.mmap:
        view = map_file(number)
        os.ftruncate(number, 100)
        return view

    monkeypatch.setattr(_file_mapping, "map_file", map_and_truncate)
    process = os.fork()
    if not process:
        with contextlib.suppress(BaseException):
            write_atomically(tmp_path / "m", iter([bytes(size)]))
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
