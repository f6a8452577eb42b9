"""Records which requirements each test proves, and with what outcome.

A test names them with ``@pytest.mark.requirement("G-24")``, three at most. ``--test-report FILE``
writes ``{"tests": {id: {"outcome", "requirements", "seconds"}}}``, which tools/requirements.py
reads. Under pytest-xdist the workers' reports carry the ids, and the controller alone writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tools.requirements import read_requirements

if TYPE_CHECKING:
    from collections.abc import Iterable

PROPERTY: Final = "requirement"
MAX_PER_TEST: Final = 3


def requirement_ids(item: pytest.Item) -> tuple[str, ...]:
    """Return the ids that the test's marks name.

    Raises:
        pytest.UsageError: more than three ids, or one that docs/requirements.md does not have.
    """
    ids = tuple(dict.fromkeys(id_ for mark in item.iter_markers(PROPERTY) for id_ in mark.args))
    if len(ids) > MAX_PER_TEST:
        raise pytest.UsageError(
            f"{item.nodeid} names {len(ids)} requirements; a test proves {MAX_PER_TEST} at most"
        )
    if unknown := [id_ for id_ in ids if id_ not in _KNOWN]:
        raise pytest.UsageError(
            f"{item.nodeid} names {', '.join(map(str, unknown))}, "
            "which docs/requirements.md does not have"
        )
    return ids


def tag(items: Iterable[pytest.Item]) -> None:
    """Put each test's ids where its reports carry them."""
    for item in items:
        item.user_properties.extend((PROPERTY, id_) for id_ in requirement_ids(item))


class Recorder:
    """Collects outcomes and writes them when the session ends."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path
        self._tests: dict[str, tuple[str, tuple[str, ...], float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Merge the reports of a test's phases: the worst one counts."""
        ids = tuple(str(value) for name, value in report.user_properties if name == PROPERTY)
        before, _, seconds = self._tests.get(report.nodeid, ("", (), 0.0))
        if report.failed or before == "failed":
            outcome = "failed"
        elif report.skipped or before == "skipped":
            outcome = "skipped"
        else:
            outcome = "passed"
        self._tests[report.nodeid] = (outcome, ids, seconds + report.duration)

    def pytest_sessionfinish(self) -> None:
        """Write the report."""
        tests = {
            test: {"outcome": outcome, "requirements": ids, "seconds": round(seconds, 3)}
            for test, (outcome, ids, seconds) in sorted(self._tests.items())
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"tests": tests}, indent=1) + "\n", encoding="utf-8")


def install(config: pytest.Config) -> None:
    """Register a recorder when a report is asked for, on the process that sees every test."""
    path: str | None = config.getoption("--test-report")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "smelt-requirements")


_KNOWN: Final = frozenset(read_requirements())
