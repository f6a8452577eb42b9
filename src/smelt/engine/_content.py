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
from smelt.engine._pages import map_file
from smelt.errors import EngineFormatError, TrustError, masked
from smelt.types import Limit, open_file, path_from

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from io import BufferedReader
    from pathlib import Path

BytesLike = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]
"""Bytes that are not copied."""

_PIECE_BYTES: Final = 1 << 18
"""Copied and then hashed: a piece is still in the processor's cache when it is hashed."""
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Content:
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
            for start in range(0, size, _PIECE_BYTES):
                piece = found[start : start + _PIECE_BYTES]
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
def open_content(
    source: str | os.PathLike[str] | BytesLike | BinaryIO, *, mapped: bool = False
) -> Generator[Content]:
    """Give the bytes of a path, an open binary file or a buffer, for as long as they are read.

    Raises:
        EngineFormatError: there are none, or they cannot be read.
        TrustError: a file is to be mapped that others may write to.
    """
    if not isinstance(source, str | os.PathLike):
        if mapped:
            raise EngineFormatError("only a file that is named by its path can be mapped")
        yield _content_of_buffer(source)
        return
    path = path_from(source, "an engine", EngineFormatError)
    name = masked(str(path))
    with _open_file(path, name) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise EngineFormatError(f"{name} is empty; copy it again")
        whole = _map_file(file, path, name) if mapped else None
        yield Content(size, name, functools.partial(_read_at, file, name), whole)


def _open_file(path: Path, name: str) -> BufferedReader:
    try:
        return open_file(path, Limit.MAX_ENGINE_BYTES)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error


def _map_file(file: BufferedReader, path: Path, name: str) -> NDArray[np.uint8]:
    try:
        found = config.who_else_writes(path, above=None)
    except OSError as error:
        raise _unreadable(name, error) from error
    if found:
        raise TrustError(
            f"{name} is not mapped: {found}, and who changes a file that is mapped changes the "
            "engine while it runs. Load it without mapped=True: it is then copied"
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
                raise EngineFormatError(f"{name} became shorter while it was read; copy it again")
            done += count
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError | ValueError) -> EngineFormatError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return EngineFormatError(f"{name} cannot be read: {reason}")


def _read_all(read: Callable[[], bytes], kind: str) -> bytes:
    """All that an open file still holds; it may be of any class, and raise whatever it likes."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:
        raise EngineFormatError(f"the engine in a {kind} cannot be read: {error}") from error


def _content_of_buffer(source: BytesLike | BinaryIO) -> Content:
    content: Any = source
    read: Callable[[], bytes] | None = getattr(source, "read", None)
    if read is not None and not isinstance(source, mmap.mmap):
        content = _read_all(read, type(source).__name__)
    try:
        data = np.frombuffer(content, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise EngineFormatError(
            f"an engine is a path, bytes or an open binary file, not {type(source).__name__}"
        ) from error

    def fill(offset: int, target: memoryview) -> None:
        target[:] = data[offset : offset + len(target)].data

    return Content(data.size, "the engine", fill)
