"""The glossary names things that are there, and the code has no other words for them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "src" / "smelt"
MAX_TERMS: Final = 80
RETIRED: Final = {
    "laboratory": "bench",
    "specimen": "isolated node",
    "rehearsal": "in-network trial",
    "scene": "fixture",
    "gauge": "result check",
    "panelwise": "fused pair",
    "moment": "time step",
    "moments": "time step",
    "shelf": "fixture",
    "verdict": "runtime checks",
    "machinery": "plan executor",
}
"""Words that the code had for what the glossary names: parts of identifiers and of file names."""


def _rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return cells[2:]


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def _names(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case _:
                pass


def test_the_glossary_is_short_and_in_order() -> None:
    terms = [term.lower() for term, *_ in _rows()]
    assert len(terms) == len(set(terms)) <= MAX_TERMS
    assert terms == sorted(terms)


@pytest.mark.parametrize(("term", "meaning", "where"), _rows())
def test_a_term_has_one_line_and_lives_where_it_says(term: str, meaning: str, where: str) -> None:
    assert term
    assert meaning.endswith(".")
    files = re.findall(r"`([^`]+)`", where)
    assert files
    assert all((PACKAGE / file).is_file() for file in files)


def test_no_identifier_or_file_has_a_retired_word() -> None:
    terms = {term.lower() for term, *_ in _rows()}
    assert set(RETIRED.values()) <= terms
    found = {
        f"{path.relative_to(ROOT)}: {name} ({RETIRED[word]})"
        for path in PACKAGE.rglob("*.py")
        for name in _names(path)
        for word in _words(name) & RETIRED.keys()
    }
    assert not found
