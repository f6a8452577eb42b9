"""The timing cache: what was measured, in a file that people can read.

One JSON object: for each key, which says what was measured and on what, the seconds. Files merge by
union. A file that cannot be read or written is never an error: the worst is that something is
measured again. A device, as the null device, is neither read nor written.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Final, cast

from smelt.engine import write_atomically
from smelt.errors import BuildError, SmeltError
from smelt.types import (
    Limit,
    fields_of,
    is_special,
    parse_json,
    read_file,
    require_path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOG = logging.getLogger(__name__)
_FORMAT: Final = "smelt timing cache 1"


class TimingCache:
    """Seconds by key. It only chooses among tactics that the backend lists: it does no harm."""

    def __init__(self, path: str | Path | None = None) -> None:
        """An empty cache, or what ``path`` holds."""
        self.path = None if path is None else require_path(path, "a timing cache")
        self.entries: dict[str, float] = {}
        self.changed = False
        if self.path is not None:
            self.entries.update(read_timings(self.path))

    def get(self, key: str) -> float | None:
        """The seconds measured for ``key``, if any."""
        return self.entries.get(key)

    def put(self, key: str, seconds: float) -> None:
        """Note a measurement."""
        self.entries[key] = seconds
        self.changed = True

    def merge(self, other: Mapping[str, float]) -> None:
        """Add what another cache knows; what this one measured itself stays."""
        for key, seconds in other.items():
            self.entries.setdefault(key, seconds)

    def save(self) -> None:
        """Write the file, with what other processes wrote meanwhile; nothing without a path."""
        if self.path is None or not self.changed or is_special(self.path):
            return
        self.merge(read_timings(self.path))
        text = json.dumps(
            {"format": _FORMAT, "seconds": dict(sorted(self.entries.items()))}, indent=1
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, iter([text.encode()]))
        except (OSError, SmeltError) as error:
            _LOG.warning("the timing cache %s is not saved: %s", self.path, error)
            return
        self.changed = False


def check_timings(path: Path) -> None:
    """See to it that nothing else is lost where a user has named a file for timings.

    Raises BuildError: the file is there, and is not a timing cache.
    """
    try:
        if not is_special(path) and path.stat().st_size:
            _entries(path)
    except IsADirectoryError as error:
        raise BuildError(f"timing_cache is {path}, which is a folder; give a file in it") from error
    except OSError:
        return  # whoever reads it says so
    except (ValueError, RecursionError) as error:
        raise BuildError(
            f"timing_cache is {path}, which is not a timing cache ({error}) and would be "
            "overwritten; give another file, or remove this one"
        ) from error


def read_timings(path: Path) -> dict[str, float]:
    """The entries of a file; those that are not sound are left out."""
    if is_special(path):
        return {}
    try:
        entries = _entries(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
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
    if fields.get("format") != _FORMAT or not isinstance(entries, dict):
        raise ValueError(f"its format is not {_FORMAT!r}")
    return cast("dict[str, object]", entries)
