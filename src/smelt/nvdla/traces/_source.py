"""Finding traces in a folder, a file or a tar archive, which is read without unpacking it.

Reader of untrusted tar archives: everything unpacked counts against the limits as it is read.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import tarfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from smelt.errors import ModelFormatError
from smelt.types import Limit, open_file, read_file, require_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader


_CHUNK_BYTES = 1 << 16
"""Bytes read from an archive's member at a time."""
_READ_ERRORS = (
    tarfile.TarError,
    EOFError,
    OSError,
    lzma.LZMAError,
    zlib.error,
    # tarfile does not convert the errors that malformed numbers and nested headers cause.
    ValueError,
    OverflowError,
    RecursionError,
)


class _Source(Protocol):
    """Source of uncompressed bytes."""

    def read(self, size: int, /) -> bytes: ...


class _CountedStream:
    """Uncompressed bytes of an archive, held to the limits: headers, contents, skipped members."""

    def __init__(self, file: _Source) -> None:
        self._file = file
        self._read_bytes = 0
        self._declared_bytes = 0
        self._header_end = 0
        self.begin_header(0)

    def begin_header(self, offset: int) -> None:
        """Expect the next member's header at ``offset`` and limit its size.

        tarfile reads a whole header into memory, so a header has a smaller limit than contents.
        """
        self._header_end = offset + Limit.MAX_TRACE_HEADER_BYTES.most + tarfile.RECORDSIZE

    def begin_content(self) -> None:
        """End the header: only the limit of the whole archive applies to the contents."""
        self._header_end = Limit.MAX_TRACE_BYTES.most

    def declare(self, size: int) -> None:
        """Count the size that a member declares, which exceeds what is read for a sparse member.

        Raises:
            ModelFormatError: If the declared sizes exceed the limit of the archive.
        """
        self._declared_bytes += size
        if size < 0 or self._declared_bytes > Limit.MAX_TRACE_BYTES.most:
            raise ModelFormatError(
                f"the archive unpacks to {Limit.MAX_TRACE_BYTES.excess(self._declared_bytes)}"
            )

    def read(self, size: int) -> bytes:
        """Return at most ``size`` more bytes.

        Raises:
            ModelFormatError: If the archive or a member's header exceeds its limit.
        """
        data = self._file.read(size)
        self._read_bytes += len(data)
        if self._read_bytes > Limit.MAX_TRACE_BYTES.most:
            raise ModelFormatError(f"the archive unpacks to {Limit.MAX_TRACE_BYTES.excess('more')}")
        if self._read_bytes > self._header_end:
            detail = Limit.MAX_TRACE_HEADER_BYTES.excess("more")
            raise ModelFormatError(f"the header of a member has {detail}")
        return data


def read_archive(path: Path) -> dict[PurePosixPath, bytes]:
    """Return the regular files of a tar archive, compressed or not, by their names.

    Files whose names are absolute or contain ``..`` are left out.

    Raises:
        ModelFormatError: If the archive cannot be read or exceeds a limit.
    """
    files: dict[PurePosixPath, bytes] = {}
    try:
        with ExitStack() as stack:
            counted = _CountedStream(_decompress(open_file(path, Limit.MAX_TRACE_BYTES), stack))
            # As a stream, tarfile never seeks: skipped members pass through ``read`` and count.
            stream = cast("IO[bytes]", counted)
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
            for member in _members(archive, counted):
                name = PurePosixPath(member.name)
                if not member.isfile() or name.is_absolute() or ".." in name.parts:
                    continue
                counted.declare(member.size)
                files[name] = _content(archive, member)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path.name}: {error}") from None
    except _READ_ERRORS as error:
        raise ModelFormatError(f"{path.name} is not a readable archive: {error}") from None
    return files


def _decompress(file: BufferedReader, stack: ExitStack) -> _Source:
    """Return the file's uncompressed bytes; its first bytes determine the compression."""
    stack.enter_context(file)
    start = file.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return stack.enter_context(gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return stack.enter_context(bz2.BZ2File(file))
    if start.startswith(b"\xfd7zXZ"):
        return stack.enter_context(lzma.LZMAFile(file))
    return file


def _members(archive: Any, counted: _CountedStream) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive.

    ``archive`` is a TarFile; it is typed as Any because the type stubs lack its lists.

    Raises:
        ModelFormatError: If there are more members than the limit.
    """
    for count in range(Limit.MAX_TRACE_MEMBERS.most + 1):
        counted.begin_header(archive.offset)
        member = archive.next()
        if member is None:
            return
        if count == Limit.MAX_TRACE_MEMBERS.most:
            raise ModelFormatError(f"the archive has {Limit.MAX_TRACE_MEMBERS.excess('more')}")
        # tarfile keeps every member, and copies the global headers into each: bound its memory.
        archive.members.clear()
        archive.pax_headers.clear()
        counted.begin_content()
        yield member


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Return a member's bytes.

    They are read in chunks: a single read would concatenate a sparse member's pieces one by one.
    """
    content = archive.extractfile(member)
    if content is None:
        return b""
    with content:
        return b"".join(iter(lambda: content.read(_CHUNK_BYTES), b""))


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
