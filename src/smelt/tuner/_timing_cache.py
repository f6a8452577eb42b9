"""The timing cache: measured seconds in a readable JSON file.

The file is one JSON object. Each key describes what was measured and on which machine; its value is
the seconds. Files are merged by union. A file that cannot be read or written is not an error: the
times are measured again. Special files, such as /dev/null, are neither read nor written.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Final

from smelt.engine import locked_folder, write_atomically
from smelt.errors import BuildError, SmeltError
from smelt.signal_errors import make_directory, pass_on_handler_error
from smelt.types import (
    Limit,
    fields_of,
    is_json_object,
    is_special,
    parse_json,
    read_file,
    require_path,
)

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger(__name__)
_FORMAT: Final = "smelt timing cache 1"


class TimingCache:
    """Measured seconds by key; wrong entries only change how tactics are ranked."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Create a cache with the entries of ``path``, or an empty one if it is None or missing."""
        self.path = None if path is None else require_path(path, "a timing cache")
        self.entries: dict[str, float] = {}
        self.changed = False
        if self.path is not None:
            self.entries.update(read_timings(self.path))

    def get(self, key: str) -> float | None:
        """The seconds measured for ``key``, if any."""
        return self.entries.get(key)

    def put(self, key: str, seconds: float) -> None:
        """Add or replace a measurement."""
        self.entries[key] = seconds
        self.changed = True

    def save(self) -> None:
        """Write the file, merged with entries that other processes have written meanwhile.

        Processes write in turn; one that has waited for a second writes without a lock.
        Nothing is written without a path or without changes. A failure is logged as a warning.
        """
        if self.path is None or not self.changed or is_special(self.path):
            return
        try:
            make_directory(self.path.parent)
            with locked_folder(self.path.parent):
                self.entries = read_timings(self.path) | self.entries
                seconds = dict(sorted(self.entries.items()))
                text = json.dumps({"format": _FORMAT, "seconds": seconds}, indent=1)
                write_atomically(self.path, iter([text.encode()]))
        except (OSError, SmeltError) as error:
            pass_on_handler_error(error)
            _LOG.warning("the timing cache %s is not saved: %s", self.path, error)
            return
        self.changed = False


def check_timings(path: Path) -> None:
    """Check that saving timings to ``path`` would not overwrite another kind of file.

    Raises:
        BuildError: the file exists and is not a timing cache or cannot be read, or it is a folder.
    """
    try:
        if is_special(path) or not path.stat().st_size:
            return
    except OSError as error:  # there is no file to overwrite; reading the cache reports the error
        pass_on_handler_error(error)
        return
    try:
        _entries(path)
    except IsADirectoryError as error:
        pass_on_handler_error(error)
        raise BuildError(
            f"timing_cache must be a file, but {path} is a folder; give a file in it"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        pass_on_handler_error(error)
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise BuildError(
            f"timing_cache {path} is not a timing cache ({reason}) and would be overwritten; give "
            "another file or remove this one"
        ) from error


def read_timings(path: Path) -> dict[str, float]:
    """Return the valid entries of a file; a file that cannot be read is logged as a warning."""
    if is_special(path):
        return {}
    try:
        entries = _entries(path)
    except FileNotFoundError as error:
        pass_on_handler_error(error)
        return {}
    except (OSError, ValueError, RecursionError) as error:
        pass_on_handler_error(error)
        _LOG.warning("the timing cache %s is not used: %s", path, error)
        return {}
    return {
        key: float(seconds)
        for key, seconds in entries.items()
        if isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0
    }


def _entries(path: Path) -> dict[str, object]:
    document = parse_json(read_file(path, Limit.MAX_TIMINGS_BYTES))
    fields = fields_of(document)
    entries = fields.get("seconds")
    if fields.get("format") != _FORMAT or not is_json_object(entries):
        raise ValueError(f"its format is not {_FORMAT!r}, or it has no timings")
    return entries
