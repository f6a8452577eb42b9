"""Reads a tar archive that may be hostile: all that is unpacked is counted as it is read."""

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

_CHUNK = 1 << 16
_UNREADABLE = (
    tarfile.TarError,
    EOFError,
    OSError,
    lzma.LZMAError,
    zlib.error,
    # What tarfile lets through of numbers that are none and of headers within headers.
    ValueError,
    OverflowError,
    RecursionError,
)


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Counted:
    """What a decompressor gives: headers, contents and members that are skipped alike."""

    def __init__(self, file: _Source) -> None:
        self._file = file
        self._given = 0
        self._declared = 0
        self._header_end = 0
        self.begin_header(0)

    def begin_header(self, offset: int) -> None:
        """Expect the next header at ``offset``: it is short, and tarfile reads it whole."""
        self._header_end = offset + Limit.MAX_TRACE_HEADER_BYTES.most + tarfile.RECORDSIZE

    def begin_content(self) -> None:
        """Read on up to the limit of the whole archive."""
        self._header_end = Limit.MAX_TRACE_BYTES.most

    def declare(self, size: int) -> None:
        """Add the size that a member has: a sparse one's is more than what is read of it."""
        self._declared += size
        if size < 0 or self._declared > Limit.MAX_TRACE_BYTES.most:
            raise ModelFormatError(f"it unpacks to {Limit.MAX_TRACE_BYTES.excess(self._declared)}")

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``. Raises ModelFormatError: they are too many."""
        data = self._file.read(size)
        self._given += len(data)
        if self._given > Limit.MAX_TRACE_BYTES.most:
            raise ModelFormatError(f"it unpacks to {Limit.MAX_TRACE_BYTES.excess('more')}")
        if self._given > self._header_end:
            detail = Limit.MAX_TRACE_HEADER_BYTES.excess("more")
            raise ModelFormatError(f"the header of a member has {detail}")
        return data


def read_archive(path: Path) -> dict[PurePosixPath, bytes]:
    """Return the files of a tar archive, compressed or not; names that lead out are left out.

    Raises:
        ModelFormatError: it cannot be read, or unpacks to too much.
    """
    files: dict[PurePosixPath, bytes] = {}
    try:
        with ExitStack() as stack:
            counted = _Counted(_unpacked(open_file(path, Limit.MAX_TRACE_BYTES), stack))
            # A stream: tarfile only reads on, by ``read``, so what it skips is counted too.
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
    except _UNREADABLE as error:
        raise ModelFormatError(f"{path.name} is not a readable archive: {error}") from None
    return files


def _unpacked(file: BufferedReader, stack: ExitStack) -> _Source:
    stack.enter_context(file)
    start = file.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return stack.enter_context(gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return stack.enter_context(bz2.BZ2File(file))
    if start.startswith(b"\xfd7zXZ"):
        return stack.enter_context(lzma.LZMAFile(file))
    return file


def _members(archive: Any, counted: _Counted) -> Iterator[tarfile.TarInfo]:
    """Members one by one; ``archive`` is a TarFile, whose lists its stubs leave out."""
    for found in range(Limit.MAX_TRACE_MEMBERS.most + 1):
        counted.begin_header(archive.offset)
        member = archive.next()
        if member is None:
            return
        if found == Limit.MAX_TRACE_MEMBERS.most:
            raise ModelFormatError(f"it has {Limit.MAX_TRACE_MEMBERS.excess('more')}")
        # tarfile keeps each member, and copies the headers for all members into each.
        archive.members.clear()
        archive.pax_headers.clear()
        counted.begin_content()
        yield member


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The bytes, read in parts: tarfile joins a sparse file's pieces one by one."""
    content = archive.extractfile(member)
    if content is None:
        return b""
    with content:
        return b"".join(iter(lambda: content.read(_CHUNK), b""))
