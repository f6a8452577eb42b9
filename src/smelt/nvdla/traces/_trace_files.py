"""Finding traces in a folder, a file or a tar archive, which is read without unpacking it.

Archives are not trusted: everything unpacked counts against the limits as it is read.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import re
import stat
import tarfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

from smelt.errors import ModelFormatError
from smelt.signal_errors import pass_on_handler_error, path_mode
from smelt.types import Limit, open_file, read_file, require_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader


_CHUNK_BYTES = 1 << 16
"""Bytes read from an archive's member at a time."""
_DIGITS = re.compile(rb"\d+")
_SHORT_BLOCKS: Final = 3
"""Blocks of a header with one short extension, as pax archives have for each member's time."""
_SHORT_EXTENSION_BYTES: Final = 32
"""Bytes that count for each block of a short extension, which tarfile reads in 0.3 ms at most."""
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


class _ArchiveStream:
    """Uncompressed bytes of an archive, held to the limits: headers, contents, skipped members.

    tarfile reads each part of a header by one call of `read`, and then takes quadratic time for
    some parts. Thus every part is checked here, before tarfile has it.
    """

    def __init__(self, file: _Source) -> None:
        self._file = file
        self._position = 0
        self._declared_bytes = 0
        self._extension_bytes = 0
        self._header_bytes = 0
        self._in_header = True

    def begin_header(self) -> None:
        """Expect the next member's header: until its content begins, its limits apply."""
        self._header_bytes = 0
        self._in_header = True

    def begin_content(self) -> None:
        """End the header: only the limit of the whole archive applies to the contents.

        Raises:
            ModelFormatError: If the headers so far exceed the limit of their extensions.
        """
        self._in_header = False
        # Besides whole blocks, tarfile may read the byte before a header.
        blocks = self._header_bytes // tarfile.BLOCKSIZE
        is_short = blocks <= _SHORT_BLOCKS
        self._extension_bytes += max(0, blocks - 1) * (
            _SHORT_EXTENSION_BYTES if is_short else tarfile.BLOCKSIZE
        )
        if self._extension_bytes > Limit.MAX_TRACE_EXTENSION_BYTES.most:
            detail = Limit.MAX_TRACE_EXTENSION_BYTES.excess("too many")
            raise ModelFormatError(
                f"the extensions of the members' headers have {detail}; pack the traces again "
                "with tar --format=ustar, which writes none"
            )

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

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._position

    def seek(self, position: int) -> None:
        """Read on to a position; at the end of the archive, stop there."""
        if position < self._position:
            raise tarfile.StreamError("seeking backwards is not allowed")
        while self._position < position:
            if not self._take(min(position - self._position, _CHUNK_BYTES)):
                return

    def read(self, size: int) -> bytes:
        """Return at most ``size`` more bytes.

        Raises:
            ModelFormatError: If the archive or a member's header exceeds its limit.
        """
        if not self._in_header:
            return self._take(size)
        self._header_bytes += size
        if self._header_bytes > Limit.MAX_TRACE_HEADER_BYTES.most:
            detail = Limit.MAX_TRACE_HEADER_BYTES.excess(self._header_bytes)
            raise ModelFormatError(f"the header of a member has {detail}")
        data = self._take(size)
        longest = max(map(len, _DIGITS.findall(data)), default=0)
        if longest > Limit.MAX_TRACE_HEADER_DIGITS.most:
            detail = Limit.MAX_TRACE_HEADER_DIGITS.excess(longest)
            raise ModelFormatError(f"the header of a member has {detail}")
        return data

    def _take(self, size: int) -> bytes:
        """Return at most ``size`` more bytes, which count against the limit of the archive."""
        if size < 0:
            raise tarfile.ReadError("the size of a member is negative")
        data = self._file.read(size)
        self._position += len(data)
        if self._position > Limit.MAX_TRACE_BYTES.most:
            detail = Limit.MAX_TRACE_BYTES.excess("too many")
            raise ModelFormatError(f"the archive unpacks to {detail}")
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
            stream = _ArchiveStream(_decompress(open_file(path, Limit.MAX_TRACE_BYTES), stack))
            # In the mode "r|" tarfile would read ahead, so that no header is checked on its own.
            file = cast("IO[bytes]", stream)
            archive = stack.enter_context(tarfile.open(fileobj=file, mode="r:"))
            for member in _members(archive, stream):
                name = PurePosixPath(member.name)
                if not member.isfile() or name.is_absolute() or ".." in name.parts:
                    continue
                stream.declare(member.size)
                files[name] = _content(archive, member)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path.name}: {error}") from None
    except _READ_ERRORS as error:
        pass_on_handler_error(error)
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


def _members(archive: Any, stream: _ArchiveStream) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive.

    ``archive`` is a TarFile; it is typed as Any because the type stubs lack its lists.

    Raises:
        ModelFormatError: If there are more members or extensions of headers than the limits.
    """
    for count in range(Limit.MAX_TRACE_MEMBERS.most + 1):
        member = archive.next()
        if member is None:
            return
        if count == Limit.MAX_TRACE_MEMBERS.most:
            raise ModelFormatError(f"the archive has {Limit.MAX_TRACE_MEMBERS.excess('too many')}")
        # tarfile keeps every member, and copies the global headers into each: bound its memory.
        archive.members.clear()
        archive.pax_headers.clear()
        stream.begin_content()
        yield member
        stream.begin_header()


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


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace and the folder or archive that holds it; its data files are in the same folder."""

    path: PurePosixPath
    """Path of the trace within the folder or archive."""
    read: Callable[[PurePosixPath], bytes | None] = field(repr=False)
    """Returns the bytes of a file in the folder or archive, or None if it is missing."""

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
        content = self.read(self.path)
        if content is None:
            raise ModelFormatError(
                f"{self.path} is not a regular file; it may be a broken link or a pipe"
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
        return self.read(self.path.parent / relative)


def _read_in_folder(root: Path, name: PurePosixPath) -> bytes | None:
    path = root / name
    try:
        return read_file(path, Limit.MAX_TRACE_BYTES) if stat.S_ISREG(path_mode(path)) else None
    except OSError as error:
        pass_on_handler_error(error)
        raise ModelFormatError(f"{name} cannot be read: {error.strerror}") from None


def find_traces(path: str | Path) -> tuple[TraceFile, ...]:
    """Return the traces in a folder or archive, or the single trace of a file, sorted by path.

    Broken links with a trace's suffix are listed too: playing them reports the error.

    Raises:
        FileNotFoundError: If nothing exists at the path.
        ModelFormatError: If the file is neither a trace nor a readable archive.
    """
    path = require_path(path, "a trace", ModelFormatError)
    if stat.S_ISDIR(path_mode(path)):
        paths = sorted(
            item
            for item in path.rglob("*")
            if item.suffix in _SUFFIXES and not stat.S_ISDIR(path_mode(item))
        )
        read = partial(_read_in_folder, path)
        return tuple(TraceFile(PurePosixPath(item.relative_to(path)), read) for item in paths)
    if not path_mode(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.name.endswith(_ARCHIVES):
        members = read_archive(path)
        names = sorted(name for name in members if name.suffix in _SUFFIXES)
        return tuple(TraceFile(name, members.get) for name in names)
    if path.suffix not in _SUFFIXES:
        raise ModelFormatError(
            f"{path.name} is neither a trace ({', '.join(_SUFFIXES)}) nor an archive of traces "
            f"({', '.join(_ARCHIVES)})"
        )
    # The path below the root keeps two folders: their names may name test and configuration.
    absolute = path.absolute()
    root = absolute.parents[min(2, len(absolute.parents) - 1)]
    read = partial(_read_in_folder, root)
    return (TraceFile(PurePosixPath(absolute.relative_to(root)), read),)
