"""Formulas of extents stay small, however a model or a file makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt.errors import ShapeError
from smelt.types import Limit, SymbolicDim, dim_from_text, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.types import Dim

N = SymbolicDim.symbol("n")


STEPS: list[Callable[[Dim], Dim]] = [
    lambda dim: dim * dim,
    lambda dim: dim // 2 + dim // 3,
    lambda dim: (dim + 1) // 2 + (dim + 2) // 2,
    lambda dim: (dim + 1) * (dim // 3),
]


def _repeat(step: Callable[[Dim], Dim], count: int) -> Dim:
    dim: Dim = N + 5
    for _ in range(count):
        dim = step(dim)
    return dim


@pytest.mark.parametrize("step", STEPS)
def test_what_doubles_at_every_layer_is_refused_by_name(step: Callable[[Dim], Dim]) -> None:
    with pytest.raises(ShapeError, match="MAX_DIM_ATOMS is 1,024"):
        _repeat(step, 100)


def test_what_a_deep_network_makes_is_accepted() -> None:
    dim: Dim = N
    for _ in range(60):
        dim = (dim + 1) // 2
    assert evaluate_dim(dim, {"n": 1 << 60}) == 1
    assert dim_from_text(str(dim)) == dim
    assert hash(dim_from_text(str(dim))) == hash(dim)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 1000 + "n" + ")" * 999,
        "-" * 1999 + "n",
        "*".join(["n"] * 1000),
        "(a+b+c+d)" + "*(a+b+c+d)" * 150,
        "n**99999999",
        "n//0",
        "n//m",
        "lambda: n",
        "n" * 2001,
        "(" * 500,
    ],
)
def test_hostile_texts_are_no_dimensions(text: str) -> None:
    with pytest.raises(ValueError, match=r"dimension") as caught:
        dim_from_text(text)
    assert len(str(caught.value)) < 600


def test_a_text_beyond_its_limit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="MAX_DIM_CHARACTERS is 2,000"):
        dim_from_text("n + " * Limit.MAX_DIM_CHARACTERS.most + "n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a - (b - (c - d))", 2 - (3 - (5 - 7))),
        ("-3 + a//2 - 4*b", -3 + 1 - 12),
        ("(a+b)//2*c", 10),
    ],
)
def test_sums_are_read_as_they_stand(text: str, value: int) -> None:
    assert evaluate_dim(dim_from_text(text), {"a": 2, "b": 3, "c": 5, "d": 7}) == value
