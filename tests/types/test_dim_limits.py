"""Formulas of extents stay small, however a model or a file makes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import pytest

from smelt.errors import ShapeError
from smelt.types import (
    Dim,
    Limit,
    SymbolicDim,
    dim_from_text,
    dim_to_text,
    evaluate_dim,
    shared_formula_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "*".join(["n"] * 1025),
        "(" * 91 + "n" + " + 1) // 2" * 91,
        "n * " + "9" * 4000,
        "n * " + "9" * 5000,
        "(a+b+c+d)" + "*(a+b+c+d)" * 150,
        "n**99999999",
        "n//0",
        "n//m",
        "a - (b - c)",
        "2*(n + 1)",
        "-n",
        "(2*n)//2",
        "*".join(["9" * 4000] * 3),
        "lambda: n",
        "n" * 65537,
        "(" * 500,
    ],
)
def test_hostile_texts_are_no_dimensions(text: str) -> None:
    with pytest.raises(ValueError, match=r"dimension") as caught:
        dim_from_text(text)
    assert len(str(caught.value)) < 600


def test_a_text_beyond_its_limit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="MAX_DIM_CHARACTERS is 65,536"):
        dim_from_text("n + " * Limit.MAX_DIM_CHARACTERS.most + "n")


def _largest_sum() -> Dim:
    each = Limit.MAX_DIM_CHARACTERS.most // Limit.MAX_DIM_ATOMS.most - len(" + ")
    names = [f"{'s' * (each - 4)}{i:04}" for i in range(Limit.MAX_DIM_ATOMS.most)]
    return sum((SymbolicDim.symbol(name) for name in names), cast("Dim", 0))


def _deepest_quotient() -> Dim:
    dim: Dim = N
    for _ in range(Limit.MAX_DIM_DEPTH.most):
        dim = (dim + 1) // 2
    return dim


MOST: list[tuple[str, Callable[[], Dim], Callable[[Dim], Dim], str]] = [
    ("product", lambda: math.prod([N] * 1024), lambda dim: dim * N, "MAX_DIM_ATOMS"),
    ("sum", _largest_sum, lambda dim: dim + N, "MAX_DIM_ATOMS"),
    ("quotient", _deepest_quotient, lambda dim: (dim + 1) // 2, "MAX_DIM_DEPTH"),
    (
        "name",
        lambda: SymbolicDim.symbol("n" * Limit.MAX_DIM_CHARACTERS.most),
        lambda dim: dim + 1,
        "MAX_DIM_CHARACTERS",
    ),
    ("number", lambda: N * (1 << 8191), lambda dim: dim * 2, "8,193 bits"),
    ("numerator", lambda: N // ((1 << 8192) - 1), lambda _: N // (1 << 8192), "8,193 bits"),
]


@pytest.mark.parametrize(
    ("most", "more", "detail"), [m[1:] for m in MOST], ids=[m[0] for m in MOST]
)
def test_whatever_is_made_is_read_again_and_the_rest_is_refused_by_name(
    most: Callable[[], Dim], more: Callable[[Dim], Dim], detail: str
) -> None:
    dim = most()
    assert dim_from_text(str(dim)) == dim
    with pytest.raises(ShapeError, match=detail):
        more(dim)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a - b + c - d", 2 - 3 + 5 - 7),
        ("-3 + a//2 - 4*b", -3 + 1 - 12),
        ("(a+b)//2*c", 10),
    ],
)
def test_sums_are_read_as_they_stand(text: str, value: int) -> None:
    assert evaluate_dim(dim_from_text(text), {"a": 2, "b": 3, "c": 5, "d": 7}) == value


def test_a_text_takes_no_longer_than_what_is_written_that_way() -> None:
    """Each was read within the limits, in up to half a second for two thousand characters."""
    names = "+".join(f"a{number}" for number in range(400))
    factors = "(" + "+".join("abcdefghijklmnopqrst") + ")"
    for text in (
        "-" * 900 + f"({names})",
        "0+(" * 80 + names + ")" * 80,
        "1*(" * 80 + names + ")" * 80,
        f"{factors}*{factors}-{factors}*{factors}",
        f"({names})" + "//1" * 100,
    ):
        with pytest.raises(ValueError, match="not a dimension: it must be a sum of products"):
            dim_from_text(text)


def test_formulas_of_a_file_count_once_whether_they_are_read_or_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [str(N * 7 + number) for number in range(1, 4)]
    monkeypatch.setattr(Limit.MAX_FORMULA_CHARACTERS, "most", sum(map(len, texts)))

    @shared_formula_limit
    def read() -> None:
        assert [dim_to_text(dim_from_text(text)) for text in texts * 2] == texts * 2
        with pytest.raises(ValueError, match="MAX_FORMULA_CHARACTERS"):
            dim_from_text("n + 4")

    @shared_formula_limit
    def write() -> None:
        assert [dim_from_text(dim_to_text(N * 7 + number)) for number in (1, 2, 3)]
        with pytest.raises(ShapeError, match="MAX_FORMULA_CHARACTERS"):
            dim_to_text(N + 4)

    read()
    write()
    assert dim_to_text(N + 4) == "n + 4"
