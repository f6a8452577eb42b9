"""The bytes of an engine, from wherever they come: copied while they are hashed, or mapped.

What is checked is what is used. A file may be truncated or rewritten while it is read and after,
and an application may change its buffer: so each part is copied once, into memory of this process
alone, and the copy is hashed, piece by piece. A mapped file is the exception that a caller asks
for; it is refused where anybody else may write to the file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from smelt import config
from smelt.engine._large_pages import map_file
from smelt.errors import EngineFormatError, TrustError, sanitize_name
from smelt.types import Limit, application_errors, open_file, require_path

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from io import BufferedReader
    from pathlib import Path

BytesLike = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]
"""Bytes that are not copied."""

_CHUNK_BYTES: Final = 1 << 18
"""Copied and then hashed: a piece is still in the processor's cache when it is hashed."""
_PAGE_BYTES: Final = 4096
_MAX_READ_BYTES: Final = 1 << 24
"""Asked of an open file, which may make an array of it before it reads."""


@dataclass(frozen=True, slots=True)
class EnginePrefix:
    """The bytes at the start of an engine, which say how long it is."""

    size: int
    declared: Callable[[bytes], int]
    """How many bytes an engine has that starts with these; 0 where they are no engine's."""


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """All bytes of an engine."""

    size: int
    source: str
    """Where they come from, for messages."""
    fill: Callable[[int, memoryview], None]
    """Copies the bytes from an offset on into memory, as many as that holds."""
    mapped: NDArray[np.uint8] | None = None
    """The bytes themselves, where the file is mapped."""

    def copy(self, offset: int, size: int) -> bytes:
        """Return a copy of some bytes, which must be there."""
        target = bytearray(size)
        self.fill(offset, memoryview(target))
        return bytes(target)

    def section(self, offset: int, size: int) -> tuple[NDArray[np.uint8], str]:
        """Return some bytes, which must be there, read-only, and their SHA-256 in hexadecimal.

        They start at a multiple of 4096 if they are copied, or if ``offset`` is one.
        """
        digest = hashlib.sha256()
        if self.mapped is None:
            found = _page_aligned(size)
            for start in range(0, size, _CHUNK_BYTES):
                piece = found[start : start + _CHUNK_BYTES]
                self.fill(offset + start, piece.data)
                digest.update(piece.data)
        else:
            found = self.mapped[offset : offset + size]
            digest.update(found.data)
        found.flags.writeable = False
        return found, digest.hexdigest()


def _page_aligned(size: int) -> NDArray[np.uint8]:
    """Memory of this process alone; numpy asks for large pages where it is much."""
    memory = np.empty(size + _PAGE_BYTES, np.uint8)
    start = -int(memory.ctypes.data) % _PAGE_BYTES
    return memory[start : start + size]


@contextlib.contextmanager
def open_engine_bytes(
    source: str | os.PathLike[str] | BytesLike | BinaryIO,
    first: EnginePrefix,
    *,
    mapped: bool = False,
) -> Generator[EngineBytes]:
    """Give the bytes of a path, an open binary file or a buffer, for as long as they are read.

    Of an open file, ``first`` says how many bytes there are.

    Raises:
        EngineFormatError: there are none, or they cannot be read.
        TrustError: a file is to be mapped that others may write to.
    """
    if not isinstance(source, str | os.PathLike):
        if mapped:
            raise EngineFormatError("only a file that is named by its path can be mapped")
        yield _content_of_buffer(source, first)
        return
    path = require_path(source, "an engine", EngineFormatError)
    name = sanitize_name(str(path))
    with _open_file(path, name) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise EngineFormatError(f"{name} is empty; copy it again")
        whole = _map_file(file, path, name) if mapped else None
        yield EngineBytes(size, name, functools.partial(_read_at, file, name), whole)


def _open_file(path: Path, name: str) -> BufferedReader:
    try:
        return open_file(path, Limit.MAX_ENGINE_BYTES)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error


def _map_file(file: BufferedReader, path: Path, name: str) -> NDArray[np.uint8]:
    try:
        found = config.other_writers(path, above=None)
        # Nobody else can change what the path names now. What was opened before may be another.
        if not found and not os.path.samestat(path.stat(), os.fstat(file.fileno())):
            found = "it was replaced while it was opened"
    except OSError as error:
        raise _unreadable(name, error) from error
    if found:
        raise TrustError(
            f"{name} cannot be mapped: {found}, and a change of a mapped file changes the engine "
            "while it runs. Load it without mapped=True, which copies the file"
        )
    try:
        # The mapping lives as long as an array looks into it.
        return np.frombuffer(map_file(file.fileno()), np.uint8)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error


def _read_at(file: BufferedReader, name: str, offset: int, target: memoryview) -> None:
    """Read as many bytes of a file as the target holds."""
    done = 0
    try:
        file.seek(offset)
        while done < len(target):
            count = file.readinto(target[done:])
            if not count:
                raise EngineFormatError(f"{name} was truncated while it was read; copy it again")
            done += count
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError | ValueError) -> EngineFormatError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return EngineFormatError(f"{name} cannot be read: {reason}")


def _read_declared(read: Callable[[int], bytes], kind: str, first: EnginePrefix) -> bytearray:
    """What an open file says that it holds, and a byte more if there is one.

    It may be endless, of any class, and raise whatever it likes.
    """
    content, wanted = bytearray(), first.size

    def refused(reason: str) -> EngineFormatError:
        return EngineFormatError(f"the engine in a {kind} cannot be read: {reason}")

    with application_errors(refused):
        while len(content) < wanted:
            piece = read(min(wanted - len(content), _MAX_READ_BYTES))
            if not piece:
                break
            content += piece
            if len(content) >= first.size:
                wanted = first.declared(bytes(content[: first.size])) + 1
    return content


def _content_of_buffer(source: BytesLike | BinaryIO, first: EnginePrefix) -> EngineBytes:
    content: Any = source
    read: Callable[[int], bytes] | None = getattr(source, "read", None)
    if read is not None and not isinstance(source, mmap.mmap):
        content = _read_declared(read, type(source).__name__, first)
    try:
        data = np.frombuffer(content, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise EngineFormatError(
            "an engine is given as a path, bytes or an open binary file, not as "
            f"{type(source).__name__}"
        ) from error

    def fill(offset: int, target: memoryview) -> None:
        target[:] = data[offset : offset + len(target)].data

    return EngineBytes(data.size, "the engine", fill)
