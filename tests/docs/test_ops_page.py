"""The reference of ops says what docstrings and backends say."""

from __future__ import annotations

from itertools import pairwise

import pytest

from smelt.ops import ALL_OPS, Conv
from tools import op_reference


def test_the_page_has_the_docstring_and_the_attributes_of_each_op() -> None:
    text = op_reference.PAGE.read_text(encoding="utf-8")
    for op in ALL_OPS:
        _, section = text.split(f"## {op.__name__}\n")
        lines = section.split("\n## ")[0].splitlines()
        wanted = op_reference.op_section(op, {}).splitlines()[1:]
        assert [line for line in wanted if line not in lines] == [], "run tools.op_reference"


def test_the_page_has_the_ops_in_order() -> None:
    text = op_reference.PAGE.read_text(encoding="utf-8")
    heads = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert all(first.lower() < second.lower() for first, second in pairwise(heads))
    assert set(heads) == {op.__name__ for op in ALL_OPS}


@pytest.mark.slow
def test_the_page_is_what_the_tool_writes() -> None:
    """Every backend is asked for the tactics of every case."""
    assert op_reference.PAGE.read_text(encoding="utf-8") == op_reference.page(), (
        "run python -m tools.op_reference"
    )


def test_a_section_has_what_a_class_inherits() -> None:
    coverage = op_reference.Coverage({"winograd", "conv"}, is_partial=True)
    section = op_reference.op_section(Conv, {"CPU": coverage, "CUDA": op_reference.Coverage()})
    wanted = {
        "* **Source:** ONNX Conv-22.",
        "* **CPU:** `conv`, `winograd`, partly",
        "* **CUDA:** reference",
        "| `strides` | `tuple[int, ...]` | `()` | Steps between windows. |",
    }
    assert wanted <= set(section.splitlines())


def test_what_passes_make_of_an_op_stands_in_brackets() -> None:
    assert str(op_reference.Coverage(replaced={"b", "a"})) == "(`a`, `b`)"
