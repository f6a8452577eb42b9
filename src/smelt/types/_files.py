"""Opening files by paths from outside: never blocks, accepts regular files, enforces limits."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error, path_mode, suppress_own
from smelt.types._argument_checks import application_errors
from smelt.types._type_guards import is_path

if TYPE_CHECKING:
    from io import BufferedReader

    from smelt.types._limits import Limit

# Opening a FIFO for reading would wait for a writer, and a device for its driver.
_WITHOUT_WAITING: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BINARY: Final[int] = getattr(os, "O_BINARY", 0)
_READER_SECONDS: Final = 10
"""Seconds to wait until a process reads a pipe."""
_DESCRIPTOR: Final = re.compile(r"/(?:proc/(\d+)(?:/task/\d+)?|dev)/fd/(\d+)")
"""Name of an open file of a process; groups: the process, the number of the file."""
_MAX_LINKS: Final = 40
"""Largest number of symbolic links that Linux follows in a path."""
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
    text: object = None
    with application_errors(lambda reason: error(f"the path of {what} cannot be read: {reason}")):
        text = os.fspath(given) if is_path(given) else None
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
    """Return whether a path must be written in place: a renamed file must not replace it.

    That is a device, a pipe, a socket or, of whatever kind, an open file of a process, such as
    /dev/stdout. A path that does not exist is not special, unless it names a closed file.
    """
    mode = path_mode(path)
    is_ordinary = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    if mode and not is_ordinary:
        return True
    return _find_descriptor(path) is not None


def _find_descriptor(path: str | os.PathLike[str]) -> re.Match[str] | None:
    """Return the name of the open file of a process to which a path leads; None if to none.

    os.path.realpath follows also this link, to the name that the file had when it was opened.
    """
    name = os.fspath(path)
    with suppress_own(OSError, ValueError):  # no link, or not the name of a file
        for _ in range(_MAX_LINKS):
            folder = os.path.realpath(os.path.dirname(name), strict=True)
            name = os.path.join(folder, os.path.basename(name))
            if found := _DESCRIPTOR.fullmatch(name):
                return found
            name = os.path.join(folder, os.readlink(name))
    return None


def open_special(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a special file for writing; wait up to 10 seconds for a process that reads a pipe.

    A regular file that this process has open is written where its descriptor stands; to one that
    another process has open, the bytes are appended.

    Raises:
        OSError: the path cannot be opened, or no process reads the pipe.
    """
    append = 0
    if stat.S_ISREG(path_mode(path)):
        if (number := _own_descriptor(path)) is not None:
            return os.fdopen(os.dup(number), "wb")  # continues where the other writes ended
        append = os.O_APPEND
    end = time.monotonic() + _READER_SECONDS
    while True:
        try:
            number = os.open(path, os.O_WRONLY | append | _BINARY | _WITHOUT_WAITING)
        except OSError as error:
            pass_on_handler_error(error)
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(os.stat(path).st_mode):
                raise
            if time.monotonic() > end:
                raise OSError(error.errno, "no process reads the pipe", os.fspath(path)) from error
            time.sleep(_READER_SECONDS / 1000)
        else:
            if os.name == "posix":
                os.set_blocking(number, True)
            return os.fdopen(number, "wb")


def _own_descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the open file of this process to which a path leads, or None."""
    found = _find_descriptor(path)
    if found is None or (found[1] and found[1] != os.readlink("/proc/self")):
        return None
    return int(found[2])


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | _WITHOUT_WAITING)
