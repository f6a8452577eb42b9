"""What each pass makes of small networks, as files to be read: tests/golden/passes.

A file holds cases: a title after ``##``, the graph before, after ``-->`` the graph after and the
notes. Give ``--update-golden`` to write what follows ``-->`` anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smelt.interp import interpret
from smelt.ir import Graph, print_graph
from smelt.ops import ALL_OPS
from smelt.passes import ALL_PASSES, Pass, run_passes
from tests.property.graphs import random_inputs
from tests.support.graph_text import parse_graph

FOLDER = Path(__file__).parent.parent / "golden" / "passes"
OPS = {op.__name__: op for op in ALL_OPS}
PASSES = {kind.name: kind for kind in ALL_PASSES}


def test_every_pass_has_golden_cases() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PASSES)


def _cases(path: Path) -> list[tuple[str, str, str]]:
    """Title, text before and text after of each case."""
    cases: list[tuple[str, str, str]] = []
    for part in path.read_text().split("## ")[1:]:
        title, rest = part.split("\n", 1)
        before, _, after = rest.partition("-->\n")
        cases.append((title, before.strip() + "\n", after.strip() + "\n"))
    return cases


def _rewrite(kind: type[Pass], before: str) -> tuple[Graph, Graph, str]:
    graph, original = parse_graph(before, OPS), parse_graph(before, OPS)
    report = run_passes(graph, [kind()])
    notes = "".join(f"note {note}\n" for note in report.notes)
    return original, graph, print_graph(graph) + notes


def _is_static(graph: Graph) -> bool:
    return all(value.tensor.is_static for value in graph.inputs)


@pytest.mark.parametrize("name", sorted(PASSES))
@pytest.mark.requirement("G-1", "G-24")
def test_a_pass_rewrites_its_cases_as_written_and_keeps_their_results(
    name: str, request: pytest.FixtureRequest
) -> None:
    path = FOLDER / f"{name}.txt"
    written: list[str] = []
    for title, before, after in _cases(path):
        original, graph, text = _rewrite(PASSES[name], before)
        assert print_graph(original) == before, f"{title}: not as the printer writes it"
        written.append(f"## {title}\n{before}-->\n{text}")
        if _is_static(original):
            _compare(original, graph, title)
        if not request.config.getoption("--update-golden"):
            assert text == after, title
    if request.config.getoption("--update-golden"):
        path.write_text("\n".join(written))


def _compare(original: Graph, graph: Graph, title: str) -> None:
    inputs = random_inputs(original)
    expected, found = interpret(original, inputs), interpret(graph, inputs)
    assert list(expected) == list(found), title
    for name, array in expected.items():
        tolerance = 2e-2 if array.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(
            found[name].astype(np.float64),
            array.astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=title,
        )
