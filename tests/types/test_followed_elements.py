"""Inference computes with elements that follow from shapes within limits, and no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.types import Limit, SymbolicDim, may_follow, shared_formula_limit

if TYPE_CHECKING:
    import pytest

    from smelt.types import Dim


def test_numbers_and_a_few_symbols_are_followed() -> None:
    n = SymbolicDim.symbol("n")
    assert may_follow([1] * 4096)
    assert may_follow([n, 3, n * 2 + 1])


def test_a_vector_of_long_formulas_is_not_followed() -> None:
    total: Dim = 0
    for number in range(20):
        total = total + SymbolicDim.symbol(f"s{number}")
    assert may_follow([total] * 64)
    assert not may_follow([total] * 4096)


def test_all_vectors_of_one_file_are_followed_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n = SymbolicDim.symbol("n")
    monkeypatch.setattr(Limit.MAX_FOLLOWED_ATOMS, "most", 10)
    with shared_formula_limit():
        assert all(may_follow([n, n]) for _ in range(5))
        assert not may_follow([n])
        assert may_follow([1, 2, 3]) is False, "a file beyond the limit is not followed at all"
    with shared_formula_limit():
        assert may_follow([n]), "each file has the whole limit"
    assert all(may_follow([n, n]) for _ in range(20)), "networks that are no file have no limit"
