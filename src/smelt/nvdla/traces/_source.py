"""Where traces lie: a folder, one file, or a tar archive that is read in place."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from smelt.errors import ModelFormatError
from smelt.nvdla.traces._archive import read_archive
from smelt.types import Limit, read_file, require_path

_SUFFIXES = (".cfg", ".txn")
_ARCHIVES = (".tar", ".tar.xz", ".tar.gz", ".tar.bz2", ".tgz")


class _Files(Protocol):
    def read(self, name: PurePosixPath) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class _Folder:
    root: Path

    def read(self, name: PurePosixPath) -> bytes | None:
        path = self.root / name
        try:
            return read_file(path, Limit.MAX_TRACE_BYTES) if os.path.isfile(path) else None
        except OSError as error:
            raise ModelFormatError(f"{name} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Archive:
    members: dict[PurePosixPath, bytes] = field(repr=False)

    def read(self, name: PurePosixPath) -> bytes | None:
        return self.members.get(name)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace, and where its data files are: beside it."""

    path: PurePosixPath
    """Within the folder or archive."""
    files: _Files = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the test: the trace's folder, or its stem if that stands alone."""
        stem = self.path.stem
        return self.path.parent.name if stem == "input" and self.path.parent.name else stem

    def text(self) -> str:
        """Return the trace itself.

        Raises:
            ModelFormatError: it cannot be read, or is not text.
        """
        content = self.files.read(self.path)
        if content is None:
            raise ModelFormatError(
                f"{self.path} is not a regular file: it is a broken link or a pipe"
            )
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{self.path} is not text: {error}") from None

    def data(self, name: str) -> bytes | None:
        """Return a data file beside the trace, or None if it is missing.

        Raises:
            ModelFormatError: the name leads out of the trace's folder.
        """
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise ModelFormatError(f"data file {name[:120]!r} is outside the trace's folder")
        return self.files.read(self.path.parent / relative)


def find_traces(path: str | Path) -> tuple[TraceFile, ...]:
    """Return the traces in a folder or archive, or the one that a file is, sorted by path.

    A name that leads to no file is listed too, so that playing it says so.

    Raises:
        FileNotFoundError: nothing is there.
        ModelFormatError: the file is neither a trace nor a readable archive.
    """
    path = require_path(path, "a trace", ModelFormatError)
    if os.path.isdir(path):
        found = sorted(
            item for item in path.rglob("*") if item.suffix in _SUFFIXES and not os.path.isdir(item)
        )
        folder = _Folder(path)
        return tuple(TraceFile(PurePosixPath(item.relative_to(path)), folder) for item in found)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.name.endswith(_ARCHIVES):
        archive = _Archive(read_archive(path))
        names = sorted(name for name in archive.members if name.suffix in _SUFFIXES)
        return tuple(TraceFile(name, archive) for name in names)
    if path.suffix not in _SUFFIXES:
        raise ModelFormatError(
            f"{path.name} is not a trace: its name ends in neither .cfg nor .txn"
        )
    absolute = path.absolute()
    root = absolute.parents[min(2, len(absolute.parents) - 1)]
    return (TraceFile(PurePosixPath(absolute.relative_to(root)), _Folder(root)),)
