"""Inference computes with elements that follow from shapes within limits, and no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import smelt
from smelt import ops
from smelt.ir import Graph
from smelt.types import (
    DType,
    Limit,
    SymbolicDim,
    TensorType,
    followed_atoms_limit,
    may_follow,
)

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

    @followed_atoms_limit
    def follow() -> None:
        assert all(may_follow([n, n]) for _ in range(5))
        assert not may_follow([n])
        assert may_follow([1, 2, 3]) is False, "a file beyond the limit is not followed at all"

    follow()
    assert followed_atoms_limit(may_follow)([n]), "each file has the whole limit"
    assert all(may_follow([n, n]) for _ in range(20)), "networks that are no file have no limit"


def test_an_engine_loads_whatever_its_import_had_left_of_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a build has followed, a load follows: else its plans would be refused as others."""
    graph = Graph("reversed")
    n = SymbolicDim.symbol("n")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (n, 3)))
    shape = graph.add(ops.Shape(), x, name="shape").output
    graph.outputs.append(graph.add(ops.Reshape(), x, shape, name="y").output)
    with smelt.build(graph, shapes={"x": ((1, 3), (2, 3), (8, 3))}, tune="none") as engine:
        data = engine.serialize()
    monkeypatch.setattr(Limit.MAX_FOLLOWED_ATOMS, "most", 0)
    with smelt.load(data) as engine:
        assert engine.run({"x": np.ones((5, 3), np.float32)})["y"].shape == (5, 3)
