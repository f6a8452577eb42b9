"""Random graphs at random shapes: engine, references and ONNX Runtime give the same."""

from __future__ import annotations

import pytest

from tests.support.campaigns import detail, run_module

GRAPHS = 345
PAIRS = 3000


@pytest.mark.slow
def test_engine_and_references_give_the_same_or_both_refuse() -> None:
    summary = run_module("tests.property.shape_pairs", "--count", str(GRAPHS))
    assert not summary["findings"], detail(summary)
    assert summary["done"]["pairs"] >= PAIRS
    assert summary["done"]["ONNX Runtime ran"] > PAIRS // 2
    assert summary["done"]["verdicts compared"] > PAIRS // 4
