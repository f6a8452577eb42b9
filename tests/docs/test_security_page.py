"""The page on security: each threat names tests, which exist."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def root(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath


def _tests_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _part(root: Path, title: str) -> str:
    """What stands below a title of the page."""
    text = (root / "docs" / "security.md").read_text(encoding="utf-8")
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def _threats(root: Path) -> list[list[str]]:
    """The cells of each row of the table."""
    lines = _part(root, "Threats").splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_each_threat_names_tests_that_exist(root: Path) -> None:
    rows = _threats(root)
    assert len(rows) > 15
    for row in rows:
        assert len(row) == 6, row
        cell = row[-1]
        named = re.findall(r"`(tests/[^`:]+)::(test_\w+)`", cell)
        assert named, row
        assert len(named) == cell.count("`") // 2, cell
        for path, test in named:
            assert test in _tests_of(root / path), f"{path}::{test}"


def test_each_promise_has_a_threat_with_tests(root: Path) -> None:
    promises = re.findall(r"^(\d)\. \*\*", _part(root, "Guarantees"), re.MULTILINE)
    assert promises == ["1", "2", "3", "4", "5"]
    cells = [row[0] for row in _threats(root)]
    assert {number for cell in cells for number in cell.split(", ")} == {*promises, "-"}


@pytest.mark.parametrize(
    ("name", "pages"),
    [
        ("README.md", ["security.md"]),
        ("SECURITY.md", ["security.md"]),
        ("mkdocs.yml", ["security.md", "limits.md"]),
        ("docs/index.md", ["security.md", "limits.md"]),
        ("docs/security.md", ["limits.md"]),
        ("docs/decisions/engine-trust.md", ["security.md"]),
    ],
)
def test_the_pages_are_found(root: Path, name: str, pages: list[str]) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert [page for page in pages if page not in text] == []
