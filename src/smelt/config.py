"""Table of smelt's settings: environment variable, type, default and meaning of each.

No other module reads the environment. A setting is read on each call of its accessor, never at
import, so a test or a notebook may set it at any time.

Directories are created on first use with access for their owner only. If a directory cannot be used
(no HOME, a read-only home, write access for another user), its accessor returns None, and callers
work without a cache and without a signing key.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from smelt.errors import SmeltError
from smelt.signal_errors import make_directory, pass_on_handler_error, path_mode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FLAGS",
    "EnvironmentSetting",
    "cache_directory",
    "code_cache_enabled",
    "cuda_libraries",
    "home_directory",
    "is_own_file",
    "keys_directory",
    "log_level",
    "private_directory",
    "log_once",
    "target_name",
    "thread_count",
    "trusted_keys",
    "other_writers",
    "other_writers_of_open",
]

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_LOG_LEVELS: Final = ("internal_error", "error", "warning", "info", "verbose")
_MAX_THREADS: Final = 1024
"""Largest number of threads that SMELT_THREADS may set."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
"""Mode bits that give write access to users other than the owner."""
_MAX_LINKS: Final = 40
"""Largest number of symbolic links in the resolution of a path, as in Linux."""


@dataclass(frozen=True, slots=True)
class EnvironmentSetting(Generic[T]):
    """One setting that an environment variable can change."""

    variable: str
    """Name of the environment variable."""
    kind: str
    """Description of the expected value, as it is shown in messages."""
    parse: Callable[[str], T]
    """Function that converts the text of the variable to a value.

    It raises ValueError with a message that says what is wrong with the text.
    """
    default: T

    def read(self) -> T:
        """Return the current value; an empty variable counts as unset.

        Raises:
            SmeltError: the value of the variable is not of the setting's type.
        """
        text = os.environ.get(self.variable, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            pass_on_handler_error(error)
            raise SmeltError(
                f"{self.variable}={text!r} in the environment: {error}; "
                f"set it to {self.kind}, or unset it"
            ) from None


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)
    except RuntimeError as error:
        pass_on_handler_error(error)
        raise ValueError(str(error)) from error


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part.strip())


def _switch(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("it is neither on nor off")


def _threads(text: str) -> int:
    count = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 1 <= count <= _MAX_THREADS:
        raise ValueError(f"it is not an integer from 1 to {_MAX_THREADS}")
    return count


def _first_threads(text: str) -> int:
    return _threads(text.partition(",")[0].strip())


def _level(text: str) -> str:
    level = text.lower().replace("-", "_")
    level = "verbose" if level == "debug" else level  # DEBUG is the name of this level in logging
    if level not in _LOG_LEVELS:
        raise ValueError("it is not a log level")
    return level


_HOME: Final[EnvironmentSetting[Path | None]] = EnvironmentSetting(
    "SMELT_HOME", "a directory", _path, None
)
"""Folder of the user's signing key, trusted keys and caches; ~/.smelt by default."""
_CACHE_DIR: Final[EnvironmentSetting[Path | None]] = EnvironmentSetting(
    "SMELT_CACHE_DIR", "a directory", _path, None
)
"""Folder of compiled code and timings, kept between builds; cache in SMELT_HOME by default."""
_TRUSTED_KEYS: Final[EnvironmentSetting[tuple[Path, ...]]] = EnvironmentSetting(
    "SMELT_TRUSTED_KEYS",
    f"files or directories of public keys, separated by {os.pathsep!r}",
    _paths,
    (),
)
"""Public keys that are trusted in addition to those of `smelt trust add`."""
_THREADS: Final[EnvironmentSetting[int | None]] = EnvironmentSetting(
    "SMELT_THREADS", "a number of threads", _threads, None
)
"""Number of threads of a context that is created without threads=; OMP_NUM_THREADS by default."""
_OPENMP_THREADS: Final[EnvironmentSetting[int | None]] = EnvironmentSetting(
    "OMP_NUM_THREADS", "a number of threads", _first_threads, None
)
"""Number of threads if SMELT_THREADS is not set; the first number of a list such as 4,2.

By default it is the number of processors that this process may use, by its affinity and its
cgroups' quota."""
_LOG_LEVEL: Final[EnvironmentSetting[str | None]] = EnvironmentSetting(
    "SMELT_LOG", f"one of {', '.join(_LOG_LEVELS)}", _level, None
)
"""Least severe level that is written to standard error.

By default this is left to Python's logging, which shows warnings."""
_NO_CODE_CACHE: Final[EnvironmentSetting[bool]] = EnvironmentSetting(
    "SMELT_NO_CODE_CACHE", "1 or 0", _switch, default=False
)
"""Whether every kernel is compiled again: the code cache is neither read nor written."""
_TARGET: Final[EnvironmentSetting[str | None]] = EnvironmentSetting(
    "SMELT_TARGET", "the name of a processor or level, such as x86-64-v3", str, None
)
"""CPU target for device strings without one; this machine by default."""
_CUDA_LIBRARIES: Final[EnvironmentSetting[Path | None]] = EnvironmentSetting(
    "SMELT_CUDA_LIBRARIES", "a directory", _path, None
)
"""Folder that is searched first for NVIDIA's libraries, which engines built with libraries=True
call; the packages nvidia-cublas and nvidia-cudnn-cu13, then the system's loader, by default."""

FLAGS: Final = (
    _HOME,
    _CACHE_DIR,
    _TRUSTED_KEYS,
    _THREADS,
    _OPENMP_THREADS,
    _LOG_LEVEL,
    _NO_CODE_CACHE,
    _TARGET,
    _CUDA_LIBRARIES,
)
"""All settings."""


def home_directory() -> Path | None:
    """Return smelt's home directory, or None if no private directory is available.

    The directory is ``SMELT_HOME`` or, if that is unset, ``.smelt`` in the directory that HOME
    names; it is created if it does not exist. Without HOME, or if HOME does not exist, there is no
    home directory. The password database is not used: a service without HOME must not write to a
    directory that its configuration does not name.
    """
    if (path := _HOME.read()) is not None:
        return private_directory(path, _HOME)
    user_home = os.environ.get("USERPROFILE" if os.name == "nt" else "HOME", "")
    if not stat.S_ISDIR(path_mode(user_home)):  # also for ""; smelt does not create the user's home
        return None
    return private_directory(Path(user_home) / ".smelt")


def cache_directory() -> Path | None:
    """Return the directory of the code and timing caches, created if needed, or None."""
    if (path := _CACHE_DIR.read()) is not None:
        return private_directory(path, _CACHE_DIR)
    home = home_directory()
    return None if home is None else private_directory(home / "cache")


def keys_directory() -> Path | None:
    """Return the directory of the user's own and trusted keys, created if needed, or None."""
    home = home_directory()
    return None if home is None else private_directory(home / "keys")


def trusted_keys() -> tuple[Path, ...]:
    """Return the files and directories of public keys that SMELT_TRUSTED_KEYS lists."""
    return _TRUSTED_KEYS.read()


def thread_count() -> int | None:
    """Return the default number of threads of a context; None for one per available processor.

    OMP_NUM_THREADS belongs to OpenMP: a value that is not a number of threads gives a warning
    instead of an error, as in OpenMP runtimes.
    """
    if (count := _THREADS.read()) is not None:
        return count
    try:
        return _OPENMP_THREADS.read()
    except SmeltError as error:
        log_once(logging.WARNING, f"{error}; smelt ignores the variable")
        return None


def log_level() -> str | None:
    """Return the least severe level to show on the console; None to leave logging unchanged."""
    return _LOG_LEVEL.read()


def code_cache_enabled() -> bool:
    """Return whether compiled code may be kept and reused."""
    return not _NO_CODE_CACHE.read()


def cuda_libraries() -> Path | None:
    """Return the directory that is searched first for NVIDIA's libraries, or None."""
    return _CUDA_LIBRARIES.read()


def target_name() -> str | None:
    """Return the name of the CPU target; None for the processor of this machine."""
    return _TARGET.read()


def private_directory(
    path: Path, setting: EnvironmentSetting[Path | None] | None = None
) -> Path | None:
    """Return a directory, created if needed; log the reason and return None if it is unusable.

    The reason is logged as a warning if a setting names the directory, because the user expects it
    to be used. Otherwise it is logged as information: processes often have no home on purpose.

    Args:
        path: the directory.
        setting: the setting whose variable names the directory, if any.
    """
    level = logging.INFO if setting is None else logging.WARNING
    where = f"{setting.variable}={path}" if setting else str(path)
    try:
        make_directory(path, 0o700)
        reason = other_writers(path, num_parents=1)
    except OSError as error:
        pass_on_handler_error(error)
        log_once(level, f"{where} is not used: {error.strerror}")
        return None
    if reason:
        variable = _HOME.variable if setting is None else setting.variable
        log_once(
            logging.WARNING,
            f"{where} is not used: {reason}; run this command, or set {variable} to another "
            "directory",
        )
        return None
    if os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return path
    log_once(level, f"{where} is not used: it is not writable")
    return None


@functools.cache
def log_once(level: int, text: str) -> None:
    """Log a message the first time that it occurs in this process."""
    _LOG.log(level, "%s", text)


def other_writers(path: Path, *, num_parents: int | None = 0) -> str:
    """Return why users other than this one and root may change a file; "" if they may not.

    Symbolic links are followed. The target of each link is checked, and so are the link and its
    directory, because their owner can redirect the link. The result is "" on systems whose files
    have no POSIX owners and modes.

    Args:
        path: a file or directory.
        num_parents: number of parent directories to check, since a user who may write to one of
            them can replace the file; None for all. The directory of each link is always checked.

    Returns:
        The reason, with a command in parentheses that removes it.

    Raises:
        OSError: the file does not exist.
    """
    if os.name != "posix":
        return ""
    try:
        real = path.resolve(strict=True)
    except RuntimeError as error:  # raised for a loop of links before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    links = _links_on(path)
    others = dict.fromkeys(
        (real, *list(real.parents)[:num_parents], *(link.parent for link in links))
    )
    for checked in (*links, *others):
        status = checked.lstat()
        subject = "it" if checked == real else str(checked)
        if status.st_uid not in {os.geteuid(), 0}:
            return f"{subject} is owned by another user (chown -h {os.geteuid()} {checked})"
        # In a directory with the sticky bit, only the owner of an entry can replace it.
        is_sticky = checked != real and status.st_mode & stat.S_ISVTX
        is_link = stat.S_ISLNK(status.st_mode)  # the mode of a link has no effect
        if status.st_mode & _OTHERS_WRITE and not is_sticky and not is_link:
            return f"{subject} is writable by others (chmod go-w {checked})"
    return ""


def other_writers_of_open(number: int, path: Path, *, num_parents: int | None = 0) -> str:
    """Return why other users may change an open file or have exchanged it; "" if neither.

    Both are checked: the path, and the file itself, because a path may lead to another file between
    two system calls.

    Args:
        number: the descriptor of the file.
        path: the path by which it was opened.
        num_parents: see `other_writers`.

    Raises:
        OSError: there is no file at the path now.
    """
    if reason := other_writers(path, num_parents=num_parents):
        return reason
    status = os.fstat(number)
    if not is_own_file(number):
        return "it is owned by another user"
    if os.name == "posix" and status.st_mode & _OTHERS_WRITE:
        return "it is writable by others"
    return "" if os.path.samestat(path.stat(), status) else "it was replaced while it was opened"


def is_own_file(number: int) -> bool:
    """Return whether this user or root owns an open file; True on systems without POSIX owners."""
    return os.name != "posix" or os.fstat(number).st_uid in {os.geteuid(), 0}


def _links_on(path: Path) -> list[Path]:
    """Return the symbolic links in the resolution of the path of an existing file."""
    links: list[Path] = []
    prefix, remaining = Path("/"), list(path.absolute().parts[::-1])
    while remaining and len(links) <= _MAX_LINKS:
        part = remaining.pop()
        prefix = prefix.parent if part == ".." else prefix / part
        if stat.S_ISLNK(prefix.lstat().st_mode):
            links.append(prefix)
            remaining += Path(os.readlink(prefix)).parts[::-1]
            prefix = prefix.parent  # joining an absolute target restarts at the root
    return links
