"""Finding traces in a folder, a file or a tar archive, which is read without unpacking it."""

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
    """Files that a trace may refer to."""

    def read(self, name: PurePosixPath) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class _Folder:
    """Files below a folder."""

    root: Path

    def read(self, name: PurePosixPath) -> bytes | None:
        path = self.root / name
        try:
            return read_file(path, Limit.MAX_TRACE_BYTES) if os.path.isfile(path) else None
        except OSError as error:
            raise ModelFormatError(f"{name} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class _Archive:
    """Files of an archive, in memory."""

    members: dict[PurePosixPath, bytes] = field(repr=False)

    def read(self, name: PurePosixPath) -> bytes | None:
        return self.members.get(name)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and the folder or archive that holds it; its data files are in the same folder."""

    path: PurePosixPath
    """Path of the trace within the folder or archive."""
    files: _Files = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the test: the folder of a trace named ``input``, otherwise the file's stem."""
        stem = self.path.stem
        return self.path.parent.name if stem == "input" and self.path.parent.name else stem

    def text(self) -> str:
        """Return the text of the trace.

        Raises:
            ModelFormatError: If the trace cannot be read or is not UTF-8 text.
        """
        content = self.files.read(self.path)
        if content is None:
            raise ModelFormatError(
                f"{self.path} is not a regular file, but for example a broken link or a pipe"
            )
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{self.path} is not UTF-8 text: {error}") from None

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a data file in the trace's folder, or None if the file is missing.

        Raises:
            ModelFormatError: If the name is empty, absolute or contains ``..``.
        """
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise ModelFormatError(f"data file {name[:120]!r} is outside the trace's folder")
        return self.files.read(self.path.parent / relative)


def find_traces(path: str | Path) -> tuple[TraceFile, ...]:
    """Return the traces in a folder or archive, or the single trace of a file, sorted by path.

    Broken links with a trace's suffix are listed too: playing them reports the error.

    Raises:
        FileNotFoundError: If nothing exists at the path.
        ModelFormatError: If the file is neither a trace nor a readable archive.
    """
    path = require_path(path, "a trace", ModelFormatError)
    if os.path.isdir(path):
        paths = sorted(
            item for item in path.rglob("*") if item.suffix in _SUFFIXES and not os.path.isdir(item)
        )
        folder = _Folder(path)
        return tuple(TraceFile(PurePosixPath(item.relative_to(path)), folder) for item in paths)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.name.endswith(_ARCHIVES):
        archive = _Archive(read_archive(path))
        names = sorted(name for name in archive.members if name.suffix in _SUFFIXES)
        return tuple(TraceFile(name, archive) for name in names)
    if path.suffix not in _SUFFIXES:
        raise ModelFormatError(
            f"{path.name} is not a trace: the name of a trace ends in .cfg or .txn"
        )
    # The path below the root keeps two folders: their names may name test and configuration.
    absolute = path.absolute()
    root = absolute.parents[min(2, len(absolute.parents) - 1)]
    return (TraceFile(PurePosixPath(absolute.relative_to(root)), _Folder(root)),)
