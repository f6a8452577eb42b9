"""Signs of dimensions that hold whatever the symbols are."""

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
    """Whether the dim is provably 0 or more while every symbol is at least ``least``.

    False says only that no proof was found.
    """
    if isinstance(dim, int):
        return dim >= 0
    if least:
        dim = substitute_dim(dim, {n: SymbolicDim.symbol(n) + least for n in symbols_of(dim)})
        return is_never_negative(dim)
    return _only_grows(dim) or _has_positive_bound(dim)


def _only_grows(dim: SymbolicDim) -> bool:
    """Whether no symbol makes the dim smaller, and it is not negative where all are 0."""
    grows = all(
        coefficient > 0
        and all(isinstance(atom, Symbol) or _only_grows(atom.numerator) for atom in monomial)
        for monomial, coefficient in dim.terms
        if monomial
    )
    return grows and evaluate_dim(dim, dict.fromkeys(symbols_of(dim), 0)) >= 0


def _has_positive_bound(dim: SymbolicDim) -> bool:
    """Whether a polynomial below the dim has no negative coefficient.

    A dim is whole, so a constant above -1 will do.
    """
    bound = _bound(dim, upper=False)
    return bound is not None and all(
        value > -1 if not monomial else value >= 0 for monomial, value in bound.items()
    )


def _bound(dim: SymbolicDim, *, upper: bool) -> _Bound | None:
    """A polynomial in the symbols alone, never below the dim or never above it, if found."""
    total: _Bound = defaultdict(Fraction)
    for monomial, coefficient in dim.terms:
        part = _bound_product(monomial, upper=upper == (coefficient > 0))
        if part is None:
            return None
        for factors, value in part.items():
            total[factors] += value * coefficient
    return total


def _bound_product(monomial: Monomial, *, upper: bool) -> _Bound | None:
    """A bound of a product: (p - d + 1) / d <= p // d <= p / d."""
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
    made: _Bound = defaultdict(Fraction)
    for factors, value in inner.items():
        key = tuple(sorted((*factors, *symbols), key=str))
        made[key] += value / division.divisor
    return made
