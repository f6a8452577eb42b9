"""Every flag of smelt: its name, environment variable, type, default and meaning, in one table.

Nothing else reads the environment. A flag is read when it is asked for, never at import, so a test
or a notebook may set one at any time. ``changes_engine`` says whether a flag's value is part of
what an engine was made from, and so of every key under which code or timings are cached.

Directories are created on first use, for their owner alone. Where none can be had (no HOME, a
read-only home, one that another user may write to) the accessor returns None, and callers go
without a cache and without a key.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "FLAGS",
    "Flag",
    "cache_directory",
    "code_cache_enabled",
    "cuda_libraries",
    "describe_flags",
    "engine_key",
    "home_directory",
    "keys_directory",
    "log_level",
    "private_directory",
    "log_once",
    "target_name",
    "thread_count",
    "trusted_keys",
    "other_writers",
]

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_LOG_LEVELS: Final = ("internal_error", "error", "warning", "info", "verbose")
_MAX_THREADS: Final = 1024
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS: Final = 40
"""Symbolic links on the way to a file: as many as Linux follows."""


@dataclass(frozen=True, slots=True)
class Flag(Generic[T]):
    """One setting that the environment can change."""

    name: str
    variable: str
    kind: str
    """Type of the value, in words."""
    parse: Callable[[str], T]
    """Text to value. Raises ValueError, whose message says what is expected."""
    default: T
    default_text: str
    help: str
    changes_engine: bool = False

    def read(self, environment: Mapping[str, str] | None = None) -> T:
        """Return the value in force; an empty variable is an unset one.

        Raises:
            SmeltError: the variable holds something else than the flag's type.
        """
        text = (os.environ if environment is None else environment).get(self.variable, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise SmeltError(
                f"{self.variable}={text!r} in the environment: {error}; "
                f"set it to {self.kind}, or unset it"
            ) from None


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part.strip())


def _switch(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("it must be on or off")


def _threads(text: str) -> int:
    count = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 1 <= count <= _MAX_THREADS:
        raise ValueError(f"it must be a number of threads from 1 to {_MAX_THREADS}")
    return count


def _first_threads(text: str) -> int:
    return _threads(text.partition(",")[0].strip())


def _level(text: str) -> str:
    level = text.lower().replace("-", "_")
    level = "verbose" if level == "debug" else level  # its name in logging
    if level not in _LOG_LEVELS:
        raise ValueError("it must be a severity")
    return level


_HOME: Final[Flag[Path | None]] = Flag(
    "home",
    "SMELT_HOME",
    "a directory",
    _path,
    None,
    "~/.smelt",
    "Folder of the user's signing key, trusted keys and caches.",
)
_CACHE_DIR: Final[Flag[Path | None]] = Flag(
    "cache_dir",
    "SMELT_CACHE_DIR",
    "a directory",
    _path,
    None,
    "cache in SMELT_HOME",
    "Folder of compiled code and timings, kept between builds.",
)
_TRUSTED_KEYS: Final[Flag[tuple[Path, ...]]] = Flag(
    "trusted_keys",
    "SMELT_TRUSTED_KEYS",
    f"files or directories of public keys, separated by {os.pathsep!r}",
    _paths,
    (),
    "none",
    "Public keys that are trusted in addition to those of `smelt trust add`.",
)
_THREADS: Final[Flag[int | None]] = Flag(
    "threads",
    "SMELT_THREADS",
    "a number of threads",
    _threads,
    None,
    "OMP_NUM_THREADS",
    "Number of threads of a context that is created without threads=.",
)
_OPENMP_THREADS: Final[Flag[int | None]] = Flag(
    "openmp_threads",
    "OMP_NUM_THREADS",
    "a number of threads",
    _first_threads,
    None,
    "the processors that this process may use, by its affinity and its cgroups' quota",
    "The same, if SMELT_THREADS is not set; of a list such as 4,2, the first number.",
)
_LOG_LEVEL: Final[Flag[str | None]] = Flag(
    "log",
    "SMELT_LOG",
    f"one of {', '.join(_LOG_LEVELS)}",
    _level,
    None,
    "left to Python's logging, which shows warnings",
    "Least severe level that is written to standard error.",
)
_NO_CODE_CACHE: Final[Flag[bool]] = Flag(
    "no_code_cache",
    "SMELT_NO_CODE_CACHE",
    "1 or 0",
    _switch,
    default=False,
    default_text="0",
    help="Compile every kernel again: neither read nor write the code cache.",
)
_TARGET: Final[Flag[str | None]] = Flag(
    "target",
    "SMELT_TARGET",
    "the name of a processor or level, such as x86-64-v3",
    str,
    None,
    "this machine",
    "CPU target for device strings without one.",
    changes_engine=True,
)
_CUDA_LIBRARIES: Final[Flag[Path | None]] = Flag(
    "cuda_libraries",
    "SMELT_CUDA_LIBRARIES",
    "a directory",
    _path,
    None,
    "the packages nvidia-cublas and nvidia-cudnn-cu13, then the system's loader",
    "Folder that is searched first for NVIDIA's libraries, which engines built with "
    "libraries=True call.",
)

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
"""Every flag there is."""


def home_directory() -> Path | None:
    """Return smelt's own directory, created when absent; None where there is no private place.

    ``SMELT_HOME`` decides; without it ``.smelt`` in the directory that HOME names. A process
    without HOME, or whose HOME is not there, has no home: the password database is not asked, for a
    service must not begin to write somewhere that nobody told it of.
    """
    if (path := _HOME.read()) is not None:
        return private_directory(path, _HOME)
    user_home = os.environ.get("USERPROFILE" if os.name == "nt" else "HOME", "")
    if not os.path.isdir(user_home):  # "" too; a home is its owner's to make
        return None
    return private_directory(Path(user_home) / ".smelt")


def cache_directory() -> Path | None:
    """Return the directory of the code and timing caches, created when absent, or None."""
    if (path := _CACHE_DIR.read()) is not None:
        return private_directory(path, _CACHE_DIR)
    home = home_directory()
    return None if home is None else private_directory(home / "cache")


def keys_directory() -> Path | None:
    """Return the directory of the user's own and trusted keys, created when absent, or None."""
    home = home_directory()
    return None if home is None else private_directory(home / "keys")


def trusted_keys() -> tuple[Path, ...]:
    """Return the files and directories of public keys that the environment adds."""
    return _TRUSTED_KEYS.read()


def thread_count() -> int | None:
    """Return the threads of a context that names no number; None for as many as processors.

    OMP_NUM_THREADS is not ours: where it is not a number of threads, that is a warning, as it is to
    others who read it.
    """
    if (count := _THREADS.read()) is not None:
        return count
    try:
        return _OPENMP_THREADS.read()
    except SmeltError as error:
        log_once(logging.WARNING, f"ignored: {error}")
        return None


def log_level() -> str | None:
    """Return the least important severity to show on the console; None to leave logging alone."""
    return _LOG_LEVEL.read()


def code_cache_enabled() -> bool:
    """Return whether compiled code may be kept and reused."""
    return not _NO_CODE_CACHE.read()


def cuda_libraries() -> Path | None:
    """Return the directory in which NVIDIA's libraries are looked for first."""
    return _CUDA_LIBRARIES.read()


def target_name() -> str | None:
    """Return the processor to generate code for; None for this machine's."""
    return _TARGET.read()


def engine_key() -> tuple[tuple[str, str], ...]:
    """Return every flag that changes a built engine with its value, for cache keys and plans."""
    return tuple((flag.name, str(flag.read())) for flag in FLAGS if flag.changes_engine)


def describe_flags() -> str:
    """Return the table of flags as text, one paragraph each."""
    return "\n".join(
        f"{flag.variable}  ({flag.kind}; default: {flag.default_text})\n    {flag.help}"
        for flag in FLAGS
    )


def private_directory(path: Path, flag_name: Flag[Path | None] | None = None) -> Path | None:
    """Return a directory, made if need be; None, and a word on why, where it cannot be used.

    What a variable names is missed: that is a warning. That there is no home is often meant so.
    """
    level = logging.INFO if flag_name is None else logging.WARNING
    where = f"{flag_name.variable}={path}" if flag_name else str(path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = other_writers(path, above=1)
    except OSError as error:
        log_once(level, f"{where} is not used: {error.strerror}")
        return None
    if found:
        detail = f"{where} is not used: {found}; or set it to another directory"
        log_once(logging.WARNING, detail)
        return None
    if os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return path
    log_once(level, f"{where} is not used: it is not writable")
    return None


@functools.cache
def log_once(level: int, text: str) -> None:
    """Log what is found out again and again."""
    _LOG.log(level, "%s", text)


def other_writers(path: Path, *, above: int | None = 0) -> str:
    """Say why others than this user and root may change a file or directory; "" if they may not.

    Symbolic links are followed: what counts is where they lead, and that nobody else can lead them
    elsewhere. Where a system has no owners and modes of files nobody is found.

    Args:
        path: what is looked at.
        above: how many of the directories above it count, in which it could be exchanged; None for
            all. Every link on the way counts with the directory that holds it.

    Raises:
        OSError: there is no such file.
    """
    if os.name != "posix":
        return ""
    try:
        real = path.resolve(strict=True)
    except RuntimeError as error:  # as Python before 3.13 says it
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    links = _links_on(path)
    places = dict.fromkeys((real, *list(real.parents)[:above], *(link.parent for link in links)))
    for place in (*links, *places):
        status = place.lstat()
        detail = "it" if place == real else str(place)
        if status.st_uid not in {os.geteuid(), 0}:
            return f"{detail} is owned by another user (chown -h {os.geteuid()} {place})"
        # In a directory with the sticky bit, nobody exchanges what is another's.
        is_shared = place != real and status.st_mode & stat.S_ISVTX
        is_link = stat.S_ISLNK(status.st_mode)  # its mode means nothing
        if status.st_mode & _OTHERS_WRITE and not is_shared and not is_link:
            return f"{detail} is writable by others (chmod go-w {place})"
    return ""


def _links_on(path: Path) -> list[Path]:
    """The symbolic links that are followed from a path to the file it names, which exists."""
    found: list[Path] = []
    place, left = Path("/"), list(path.absolute().parts[::-1])
    while left and len(found) <= _MAX_LINKS:
        part = left.pop()
        place = place.parent if part == ".." else place / part
        if place.is_symlink():
            found.append(place)
            left += Path(os.readlink(place)).parts[::-1]
            place = place.parent  # an absolute target begins at the root again
    return found
