"""The page of limits lists them as they are, and nothing bounds by a limit that it lacks."""

from __future__ import annotations

from smelt.types import Limit
from tests.conftest import ROOT


def test_the_page_of_limits_lists_every_limit_as_it_is() -> None:
    rows = [f"| `{limit.name}` | {limit.most:,} {limit.unit} | {limit.what} |\n" for limit in Limit]
    assert "".join(rows) in (ROOT / "docs" / "limits.md").read_text()


def test_every_limit_bounds_something() -> None:
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    unused = [limit.name for limit in Limit if f"Limit.{limit.name}" not in code]
    assert unused == []
