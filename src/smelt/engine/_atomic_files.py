"""Atomic file writes by drafts that are renamed, and removal of stale drafts of dead processes.

A writer holds a lock on its draft; the lock is released when the process ends, however it ends. The
next writer in the same folder removes every draft that it can lock. Drafts of living processes are
thus kept, on any machine or in any container. No process waits for the lock of a draft.

Only the owner may open a draft, so other users of a shared folder can neither change nor lock it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from smelt.errors import SmeltError
from smelt.signal_errors import convert_own, is_direct, suppress_own

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager
    from pathlib import Path

_FLOCK: Final[Any] = import_module("fcntl") if os.name == "posix" else None
"""The fcntl module; None on Windows, where stale drafts are not removed."""

_DRAFT: Final = re.compile(r"\..*\.[0-9a-f]{12}\.part", re.DOTALL)
_MAX_NAME_BYTES: Final = 80
_MAX_DRAFTS: Final = 16
_LOCK_SECONDS: Final = 1.0
"""Largest time to wait for the lock of a folder."""
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class AtomicFile:
    """New file that gets its final name when it is complete; until then it is a draft."""

    file: BinaryIO
    path: Path
    target: Path
    mode: int

    def replace_target(self) -> None:
        """Give the file its final name and mode; an existing file is replaced."""
        self._complete()
        self.path.replace(self.target)

    def link_target(self) -> None:
        """Give the file its final name and mode. Raises FileExistsError: the target exists."""
        self._complete()
        os.link(self.path, self.target)

    def _complete(self) -> None:
        self.file.flush()
        _set_mode(self.file.fileno(), self.mode)


@contextlib.contextmanager
def open_atomic_file(target: Path, mode: int = 0o666) -> Generator[AtomicFile]:
    """Open a draft next to ``target``; it is removed at the end if it was not renamed.

    Stale drafts of the same target are removed first.

    Args:
        target: final path of the file.
        mode: final permissions of the file, subject to the process's umask.

    Raises:
        OSError: the draft cannot be created.
    """
    remove_stale_drafts(target.parent, target.name)
    for _ in range(_MAX_DRAFTS):
        name = f"{_start(target.name)}{secrets.token_hex(6)}.part"
        with _new_draft(target.with_name(name), target, mode) as draft:
            if draft is not None:
                yield draft
                return
    raise OSError(
        errno.EBUSY,
        "other processes lock or remove each temporary file in the same folder",
        str(target),
    )


@contextlib.contextmanager
def _new_draft(path: Path, target: Path, mode: int) -> Generator[AtomicFile | None]:
    """Create and lock a draft; yield None if another process locked it first."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        with os.fdopen(number, "w+b") as file:
            final = stat.S_IMODE(os.fstat(number).st_mode)
            _set_mode(number, 0o600)
            yield AtomicFile(file, path, target, final) if _lock(number) else None
    finally:  # an interrupt must not leave a draft either
        with suppress_own(OSError):
            os.unlink(path)


def _set_mode(number: int, mode: int) -> None:
    """Set the permissions of a file; file systems without permissions are ignored."""
    if os.name == "posix":
        with suppress_own(OSError):
            os.fchmod(number, mode)


def _lock(number: int) -> bool:
    """Lock a new draft or a folder; return False if another process holds or removed it."""
    if _FLOCK is None:
        return True
    try:
        _FLOCK.flock(number, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)
    except OSError as error:  # some network file systems have no locks: no drafts are removed there
        if not is_direct(error):
            raise
        return not isinstance(error, BlockingIOError)
    return os.fstat(number).st_nlink > 0


@contextlib.contextmanager
def locked_folder(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, so that other holders neither read nor replace its files.

    The lock ends with its process. A process that waits for a second goes on without it, as it does
    where folders cannot be locked.
    """
    end, number = time.monotonic() + _LOCK_SECONDS, -1
    with suppress_own(OSError):  # a folder that may not be listed, or any on Windows
        number = os.open(folder, os.O_RDONLY)
    try:
        while number >= 0 and not _lock(number) and time.monotonic() < end:
            time.sleep(0.001)
        yield
    finally:
        if number >= 0:
            os.close(number)


def writing_to(path: Path) -> AbstractContextManager[None]:
    """Convert the errors of writing a file."""
    return convert_own(
        lambda error: SmeltError(f"{path} cannot be written: {error.strerror}"), OSError
    )


def remove_stale_drafts(folder: Path, name: str = "") -> None:
    """Remove stale drafts of one target, or of all targets in a folder."""
    if _FLOCK is None:
        return
    start = _start(name) if name else "."
    with suppress_own(OSError, ValueError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(start) and _DRAFT.fullmatch(entry.name):
                with suppress_own(OSError):
                    _remove_if_dead(entry.path)


def _start(name: str) -> str:
    """Return the prefix of a target's draft names; limited because names have a maximum size."""
    return f".{os.fsencode(name)[:_MAX_NAME_BYTES].decode(errors='ignore')}."


def _remove_if_dead(path: str) -> None:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            _FLOCK.flock(number, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)  # fails while its writer lives
            os.unlink(path)
    finally:
        os.close(number)
