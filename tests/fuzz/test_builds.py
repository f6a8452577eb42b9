"""Mutated models, built and run: a bounded number of them, and memory bugs that must be found."""

from __future__ import annotations

import pytest

from tests.fuzz.planted import PLANTS
from tests.support.campaigns import detail, run_module

COUNT = 900
NETWORKS = 11
"""The first inputs of a campaign, which are networks as they are: all that the bugs need."""
SEED = "4"
"""Under which each of the bugs shows in them."""


@pytest.mark.slow
def test_mutated_models_do_no_harm_whatever_is_built_and_run() -> None:
    summary = run_module("tests.fuzz.builds", "--count", str(COUNT))
    assert not summary["findings"], detail(summary)
    assert summary["done"]["inputs"] == COUNT
    assert summary["done"]["built"] > COUNT // 4
    assert summary["done"]["equal"] > COUNT


@pytest.fixture(scope="module")
def without_bugs() -> set[tuple[str, str]]:
    return _found()


def _found(*arguments: str) -> set[tuple[str, str]]:
    given = ("--count", str(NETWORKS), "--seed", SEED, "--attempts", "0", *arguments)
    return {
        (kind, place) for kind, place, *_ in run_module("tests.fuzz.builds", *given)["findings"]
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_memory_bug_is_found(name: str, without_bugs: set[tuple[str, str]]) -> None:
    found = _found("--plant", name) - without_bugs
    assert {kind for kind, _ in found} & set(PLANTS[name].kinds), found
