"""Files that appear whole: a draft beside the place, and drafts of dead processes swept away.

A writer holds a lock on its draft, which ends with the process however that ends. Who next writes
beside it takes the lock of every draft that nobody holds, and removes it. So no draft of a process
that lives is touched, whichever machine or container that is on. Nobody waits for a lock.

Only its owner may open a draft: a neighbour in a shared folder neither changes nor locks it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_FLOCK: Final[Any] = import_module("fcntl") if os.name == "posix" else None
"""Windows has no such locks: drafts stay there."""

_DRAFT: Final = re.compile(r"\..*\.[0-9a-f]{12}\.part", re.DOTALL)
_MAX_NAME_BYTES: Final = 80
_MAX_DRAFTS: Final = 16
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class AtomicFile:
    """A new file without its name."""

    file: BinaryIO
    path: Path
    target: Path
    mode: int

    def replace_target(self) -> None:
        """Give the file its name and its mode; what has the name is replaced."""
        self._complete()
        self.path.replace(self.target)

    def link_target(self) -> None:
        """Give the file its name and its mode. Raises FileExistsError: the name is taken."""
        self._complete()
        os.link(self.path, self.target)

    def _complete(self) -> None:
        self.file.flush()
        _set_mode(self.file.fileno(), self.mode)


@contextlib.contextmanager
def open_atomic_file(target: Path, mode: int = 0o666) -> Generator[AtomicFile]:
    """Open a new file beside ``target``, and remove it in the end if it has not got its name.

    Drafts of dead writers of the same target are removed first.

    Args:
        target: where the file is to be.
        mode: who may do what with it once it has its name, but for what the process's mask forbids.

    Raises:
        OSError: it cannot be created.
    """
    remove_stale_drafts(target.parent, target.name)
    for _ in range(_MAX_DRAFTS):
        name = f"{_start(target.name)}{secrets.token_hex(6)}.part"
        with _new_draft(target.with_name(name), target, mode) as draft:
            if draft is not None:
                yield draft
                return
    raise OSError(
        errno.EBUSY, "other processes lock or remove each new file in its folder", str(target)
    )


@contextlib.contextmanager
def _new_draft(path: Path, target: Path, mode: int) -> Generator[AtomicFile | None]:
    """A new file on which this process has the lock; None where another process was faster."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        with os.fdopen(number, "w+b") as file:
            final = stat.S_IMODE(os.fstat(number).st_mode)
            _set_mode(number, 0o600)
            yield AtomicFile(file, path, target, final) if _lock(number) else None
    finally:  # Ctrl-C, too, leaves no half-written file, even if it comes as one is opened
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _set_mode(number: int, mode: int) -> None:
    """Say who may open a file; some file systems have no modes."""
    if os.name == "posix":
        with contextlib.suppress(OSError):
            os.fchmod(number, mode)


def _lock(number: int) -> bool:
    """Lock a new file. False: another process found it first, and takes it for a dead one's."""
    if _FLOCK is None:
        return True
    try:
        _FLOCK.flock(number, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks, and no sweep
        return True
    return os.fstat(number).st_nlink > 0


def remove_stale_drafts(folder: Path, name: str = "") -> None:
    """Remove drafts that no process writes any more: of one target, or of every one in a folder."""
    if _FLOCK is None:
        return
    start = _start(name) if name else "."
    with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(start) and _DRAFT.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_dead(entry.path)


def _start(name: str) -> str:
    """How the names of a target's drafts begin; systems count the bytes of a name."""
    return f".{os.fsencode(name)[:_MAX_NAME_BYTES].decode(errors='ignore')}."


def _remove_if_dead(path: str) -> None:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            _FLOCK.flock(number, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)  # fails while its writer lives
            os.unlink(path)
    finally:
        os.close(number)
