"""Files that appear whole: a draft beside the place, and drafts of dead processes swept away.

A writer holds a lock on its draft, which ends with the process however that ends. Who next writes
beside it takes the lock of every draft that nobody holds, and removes it. So no draft of a process
that lives is touched, whichever machine or container that is on.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_FLOCK: Final[Any] = import_module("fcntl") if os.name == "posix" else None
"""Windows has no such locks: drafts stay there."""

_DRAFT: Final = re.compile(r"\..*\.[0-9a-f]{12}\.part", re.DOTALL)
_MOST_NAME: Final = 80
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def open_draft(target: Path, mode: int = 0o666) -> Generator[tuple[BinaryIO, Path]]:
    """Open a new file beside ``target``, and remove it in the end if it is still there.

    Whoever writes it gives it its name, by a rename or a link. Drafts of dead writers of the same
    target are removed first.

    Args:
        target: where the file is to be.
        mode: who may do what with it, but for what the process's mask forbids.

    Raises:
        OSError: it cannot be created.
    """
    sweep_drafts(target.parent, target.name)
    name = target.name[:_MOST_NAME]
    draft = target.with_name(f".{name}.{secrets.token_hex(6)}.part")
    try:
        with _locked(draft, mode) as file:
            yield file, draft
    finally:  # Ctrl-C, too, leaves no half-written file, even if it comes as one is opened
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _locked(draft: Path, mode: int) -> BinaryIO:
    """A new file on which this process has the lock."""
    while True:
        number = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        file = os.fdopen(number, "w+b")
        if _FLOCK is None:
            return file
        with contextlib.suppress(OSError):  # some network file systems have no locks, and no sweep
            _FLOCK.flock(number, _FLOCK.LOCK_EX)
        if os.fstat(number).st_nlink:
            return file
        file.close()  # another process found it before it was locked, and took it for a dead one's


def sweep_drafts(folder: Path, name: str = "") -> None:
    """Remove drafts that no process writes any more: of one target, or of every one in a folder."""
    if _FLOCK is None:
        return
    start = f".{name[:_MOST_NAME]}." if name else "."
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(start) and _DRAFT.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(path: str) -> None:
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _FLOCK.flock(number, _FLOCK.LOCK_EX | _FLOCK.LOCK_NB)  # fails while its writer lives
        os.unlink(path)
    finally:
        os.close(number)
