"""Opening files by paths from outside: never blocks, accepts regular files, enforces limits."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from smelt.errors import SmeltError
from smelt.handler_errors import pass_on_handler_error
from smelt.types._type_guards import is_path

if TYPE_CHECKING:
    from io import BufferedReader

    from smelt.types._limits import Limit

# Opening a FIFO for reading would wait for a writer, and a device for its driver.
_WITHOUT_WAITING: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
_READER_SECONDS: Final = 10
"""Seconds to wait until a process reads a pipe."""
_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_path(given: object, what: str, error: type[SmeltError] = SmeltError) -> Path:
    """Return a caller's path as a Path if the operating system accepts it.

    Args:
        given: a string or a path-like object.
        what: what the path names, for the message: "an engine".
        error: the class of the error.

    Raises:
        SmeltError: the path is of another type, contains NUL or a lone surrogate, or is too long.
    """
    try:
        text = os.fspath(given) if is_path(given) else None
    except TypeError as reason:  # the object's own method returns something else
        pass_on_handler_error(reason)
        text = None
    if not isinstance(text, str):
        raise error(f"the path of {what} must be a str or pathlib.Path, not {type(given).__name__}")
    try:
        os.lstat(text)
    except ValueError as reason:
        pass_on_handler_error(reason)
        raise error(f"{text[:80]!r} cannot be the path of {what}: {reason}") from reason
    except OSError as reason:
        pass_on_handler_error(reason)
        if reason.errno == errno.ENAMETOOLONG:
            detail = f"{text[:80]!r}... cannot be the path of {what}: {reason.strerror}"
            raise error(detail) from reason
    return Path(text)


def open_file(path: str | os.PathLike[str], limit: Limit) -> BufferedReader:
    """Open a regular file of at most ``limit.most`` bytes for reading, without blocking.

    The checks apply to the open file, so it cannot be replaced between check and use.

    Raises:
        OSError: the file cannot be opened, is not a regular file or is too large; ``strerror`` says
            which.
        ValueError: the path is not valid.
    """
    name = os.fspath(path)
    file = open(name, "rb", opener=_open)  # noqa: SIM115  (pathlib has no opener)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        kind = next((word for fits, word in _KINDS if fits(status.st_mode)), "of another kind")
        raise OSError(errno.EINVAL, f"it is {kind}; it must be a regular file", name)
    if status.st_size > limit.most:
        file.close()
        raise OSError(errno.EFBIG, f"it has {limit.excess(status.st_size)}", name)
    return file


def read_file(path: str | os.PathLike[str], limit: Limit) -> bytes:
    """Return the bytes of a regular file; see `open_file`.

    Bytes that are appended during the read are ignored: the size is checked once, on opening.
    """
    with open_file(path, limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def copy_bytes(
    given: bytes | bytearray | memoryview, what: str, error: type[SmeltError] = SmeltError
) -> bytes:
    """Return a copy of the bytes of a buffer. Raises SmeltError: the buffer has been released."""
    try:
        return bytes(given)
    except (BufferError, TypeError, ValueError) as reason:
        raise error(f"the bytes of {what} cannot be read: {reason}") from reason


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a device, a pipe or a socket; False if it is not accessible."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def open_special(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a device or a pipe for writing; wait up to 10 seconds for a process that reads a pipe.

    Raises:
        OSError: the path cannot be opened, or no process reads the pipe.
    """
    end = time.monotonic() + _READER_SECONDS
    while True:
        try:
            number = os.open(path, os.O_WRONLY | _BINARY | _WITHOUT_WAITING)
        except OSError as error:
            if error.errno != errno.ENXIO or not _is_pipe(path):
                raise
            if time.monotonic() > end:
                raise OSError(error.errno, "no process reads the pipe", os.fspath(path)) from error
            time.sleep(_READER_SECONDS / 1000)
        else:
            if os.name == "posix":
                os.set_blocking(number, True)
            return os.fdopen(number, "wb")


def _is_pipe(path: str | os.PathLike[str]) -> bool:
    return stat.S_ISFIFO(os.stat(path).st_mode)


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | _WITHOUT_WAITING)
