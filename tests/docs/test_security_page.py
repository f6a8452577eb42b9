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


def test_each_threat_names_tests_that_exist(root: Path) -> None:
    text = (root / "docs" / "security.md").read_text(encoding="utf-8")
    table = text.partition("## Threats")[2].partition("## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "---" not in row][1:]
    assert len(rows) > 15
    for row in rows:
        cell = row.rpartition("|")[0].rpartition("|")[2]
        named = re.findall(r"`(tests/[^`:]+)::(test_\w+)`", cell)
        assert named, row
        assert len(named) == cell.count("`") // 2, cell
        for path, test in named:
            assert test in _tests_of(root / path), f"{path}::{test}"


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
