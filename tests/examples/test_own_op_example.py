"""The example 03_two_engines_and_your_own_op: both ways give the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.examples import run_example

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.requirement("G-71")
def test_two_engines_with_a_function_between_equal_one_engine_with_an_op(tmp_path: Path) -> None:
    shown = run_example("03_two_engines_and_your_own_op", "own_op.py", home=tmp_path)
    classes = re.findall(r"classes by \w+ engines?: +(\[.*\])", shown)
    assert len(classes) == 2
    assert classes[0] == classes[1]
    (difference,) = re.findall(r"largest difference: +(\S+)", shown)
    assert float(difference) <= 1e-6
    assert ", squash, " in shown
