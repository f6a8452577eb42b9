"""Proofs that a dimension is never negative, for all values of its symbols."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

from smelt.types._dim import (
    Dim,
    FloorDiv,
    Symbol,
    SymbolicDim,
    evaluate_dim,
    substitute_dim,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.types._dim import Monomial

    _Bound = dict[tuple[Symbol, ...], Fraction]


def is_never_negative(dim: Dim, *, least: int = 0) -> bool:
    """Return whether a dimension is provably at least 0 if every symbol is at least ``least``.

    False means only that no proof was found.
    """
    if isinstance(dim, int):
        return dim >= 0
    if least:
        dim = substitute_dim(dim, {n: SymbolicDim.symbol(n) + least for n in symbols_of(dim)})
        return is_never_negative(dim)
    return _only_grows(dim) or _has_positive_bound(dim)


def _only_grows(dim: SymbolicDim) -> bool:
    """Return whether no symbol decreases the dimension and it is at least 0 where all are 0."""
    grows = all(
        coefficient > 0
        and all(isinstance(atom, Symbol) or _only_grows(atom.numerator) for atom in monomial)
        for monomial, coefficient in dim.terms
        if monomial
    )
    return grows and evaluate_dim(dim, dict.fromkeys(symbols_of(dim), 0)) >= 0


def _has_positive_bound(dim: SymbolicDim) -> bool:
    """Return whether a lower bound of the dimension has no negative coefficient.

    Dimensions are integers, so the constant of the bound only has to be above -1.
    """
    bound = _bound(dim, upper=False)
    return bound is not None and all(
        value > -1 if not monomial else value >= 0 for monomial, value in bound.items()
    )


def _bound(dim: SymbolicDim, *, upper: bool) -> _Bound | None:
    """Return an upper or a lower bound without quotients, as a polynomial; None if not found."""
    total: _Bound = defaultdict(Fraction)
    for monomial, coefficient in dim.terms:
        part = _bound_product(monomial, upper=upper == (coefficient > 0))
        if part is None:
            return None
        for factors, value in part.items():
            total[factors] += value * coefficient
    return total


def _bound_product(monomial: Monomial, *, upper: bool) -> _Bound | None:
    """Return a bound of a product, from (p - d + 1) / d <= p // d <= p / d."""
    divisions = [atom for atom in monomial if isinstance(atom, FloorDiv)]
    symbols = tuple(atom for atom in monomial if isinstance(atom, Symbol))
    if not divisions:
        return {symbols: Fraction(1)}
    if len(divisions) > 1:
        return None
    (division,) = divisions
    inner = _bound(division.numerator, upper=upper)
    if inner is None:
        return None
    if not upper:
        inner[()] = inner.get((), Fraction()) - (division.divisor - 1)
    product: _Bound = defaultdict(Fraction)
    for factors, value in inner.items():
        key = tuple(sorted((*factors, *symbols), key=str))
        product[key] += value / division.divisor
    return product
