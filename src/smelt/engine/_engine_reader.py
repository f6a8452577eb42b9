"""Reading of engine bytes from a file or buffer: copied while they are hashed, or mapped.

The bytes that are checked must be those that are used. A file may be truncated or rewritten while
it is read or later, and an application may change its buffer. Each section is therefore copied once
into private memory, and the copy is hashed in chunks. A file is mapped only on request, and only if
no other user can write to it.
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
from smelt.engine._file_mapping import map_file
from smelt.errors import EngineFormatError, TrustError, sanitize_name
from smelt.signal_errors import convert_own
from smelt.types import Limit, application_errors, open_file, require_path

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager
    from io import BufferedReader
    from pathlib import Path

BytesLike = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]
"""Buffers from which an engine can be read."""

_CHUNK_BYTES: Final = 1 << 18
"""Chunk size of copying and hashing; a chunk is still in the CPU's cache when it is hashed."""
_PAGE_BYTES: Final = 4096
_MAX_READ_BYTES: Final = 1 << 24
"""Maximum bytes per read of an open file, which may allocate a buffer of that size."""


@dataclass(frozen=True, slots=True)
class PrefixFormat:
    """Format of the first bytes of an engine, from which the size of the engine can be read."""

    size_bytes: int
    engine_size: Callable[[bytes], int]
    """Returns the size of the engine with this prefix; 0 if it is not an engine's prefix."""


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """Access to the bytes of an engine."""

    size: int
    source: str
    """Origin of the bytes, for messages."""
    fill: Callable[[int, memoryview], None]
    """Copies bytes from an offset into a buffer until it is full."""
    mapped: NDArray[np.uint8] | None = None
    """The bytes of a mapped file; None if bytes are copied."""

    def copy(self, offset: int, size: int) -> bytes:
        """Return a copy of a range of bytes, which must exist."""
        target = bytearray(size)
        self.fill(offset, memoryview(target))
        return bytes(target)

    def section(self, offset: int, size: int) -> tuple[NDArray[np.uint8], str]:
        """Return a range of bytes, which must exist, read-only, and their SHA-256 in hexadecimal.

        Their address is a multiple of 4096 if they are copied or if ``offset`` is a multiple.
        """
        digest = hashlib.sha256()
        if self.mapped is None:
            section = _page_aligned(size)
            for start in range(0, size, _CHUNK_BYTES):
                piece = section[start : start + _CHUNK_BYTES]
                self.fill(offset + start, piece.data)
                digest.update(piece.data)
        else:
            section = self.mapped[offset : offset + size]
            digest.update(section.data)
        section.flags.writeable = False
        return section, digest.hexdigest()


def _page_aligned(size: int) -> NDArray[np.uint8]:
    """Allocate private memory at a page boundary; numpy requests large pages for large arrays."""
    memory = np.empty(size + _PAGE_BYTES, np.uint8)
    start = -int(memory.ctypes.data) % _PAGE_BYTES
    return memory[start : start + size]


@contextlib.contextmanager
def open_engine_bytes(
    source: str | os.PathLike[str] | BytesLike | BinaryIO,
    prefix: PrefixFormat,
    *,
    mapped: bool = False,
) -> Generator[EngineBytes]:
    """Yield access to the bytes of a path, an open binary file or a buffer.

    ``prefix`` determines how many bytes are read from an open file.

    Raises:
        EngineFormatError: the source is empty or cannot be read.
        TrustError: the file is to be mapped, but other users may write to it.
    """
    if not isinstance(source, str | os.PathLike):
        if mapped:
            raise EngineFormatError("mapped=True requires the path of a file")
        yield _content_of_buffer(source, prefix)
        return
    path = require_path(source, "an engine", EngineFormatError)
    name = sanitize_name(str(path))
    with _reading(name):
        opened = open_file(path, Limit.MAX_ENGINE_BYTES)
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise EngineFormatError(f"{name} is empty; copy it again")
        whole = _map_file(file, path, name) if mapped else None
        yield EngineBytes(size, name, functools.partial(_read_at, file, name), whole)


def _map_file(file: BufferedReader, path: Path, name: str) -> NDArray[np.uint8]:
    with _reading(name):
        problem = config.other_writers_of_open(file.fileno(), path, num_parents=None)
    if problem:
        raise TrustError(
            f"{name} cannot be mapped: {problem}. A change of a mapped file would change the "
            "engine while it runs; load it without mapped=True, which copies the file"
        )
    with _reading(name):
        # The mapping lives as long as an array refers to it.
        return np.frombuffer(map_file(file.fileno()), np.uint8)


def _read_at(file: BufferedReader, name: str, offset: int, target: memoryview) -> None:
    """Read bytes of a file from ``offset`` until the target is full."""
    done = 0
    with _reading(name):
        file.seek(offset)
        while done < len(target):
            count = file.readinto(target[done:])
            if not count:
                raise EngineFormatError(f"{name} was truncated while it was read; copy it again")
            done += count


def _reading(name: str) -> AbstractContextManager[None]:
    """Convert the errors of reading a file."""

    def unreadable(error: Exception) -> EngineFormatError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return EngineFormatError(f"{name} cannot be read: {reason}")

    return convert_own(unreadable, OSError, ValueError)


def _unreadable(source: object, reason: str) -> EngineFormatError:
    kind = type(source).__name__
    return EngineFormatError(f"the engine cannot be read from a source of type {kind}: {reason}")


def _read_declared(source: object, read: Callable[[int], bytes], prefix: PrefixFormat) -> bytearray:
    """Read the declared size of an engine from an open file, and one more byte if there is one.

    The file may be endless, of any class, and raise any exception.
    """
    content, wanted_bytes = bytearray(), prefix.size_bytes
    with application_errors(lambda reason: _unreadable(source, reason)):
        while len(content) < wanted_bytes:
            piece = read(min(wanted_bytes - len(content), _MAX_READ_BYTES))
            if not piece:
                break
            content += piece
            if len(content) >= prefix.size_bytes:
                wanted_bytes = prefix.engine_size(bytes(content[: prefix.size_bytes])) + 1
    return content


def _content_of_buffer(source: BytesLike | BinaryIO, prefix: PrefixFormat) -> EngineBytes:
    content: Any = source
    read: Callable[[int], bytes] | None
    with application_errors(lambda reason: _unreadable(source, reason)):
        read = getattr(source, "read", None)
    if read is not None and not isinstance(source, mmap.mmap):
        content = _read_declared(source, read, prefix)
    try:
        data = np.frombuffer(content, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise EngineFormatError(
            "an engine must be given as a path, bytes or an open binary file, not as "
            f"{type(source).__name__}"
        ) from error

    def fill(offset: int, target: memoryview) -> None:
        target[:] = data[offset : offset + len(target)].data

    return EngineBytes(data.size, "the engine", fill)
