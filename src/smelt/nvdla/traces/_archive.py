"""Reader of untrusted tar archives: everything unpacked counts against the limits as it is read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from smelt.errors import ModelFormatError
from smelt.types import Limit, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

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
