"""Many dimensions evaluated at once, and their ranges over a box of symbol values.

A plan for a range of shapes has hundreds of extents, strides and offsets. Evaluated one by one in
Python they take longer than a small network runs; as one table they take a few numpy calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.errors import UnboundSymbolError
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
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.types._dim import Monomial


EXACT_BOUND: Final = float(1 << 53)
"""Magnitudes below it, sums of products included, are exact in float64, in which bounds are
computed: rounded, two large terms that cancel could prove what does not hold."""
_MAX_POINTS: Final = 1 << 14
"""A dimension of one symbol is maximised by trying every value of a range up to this long."""


class _Polynomials:
    """Sums of products of atoms: one level of a table, whose atoms have their values."""

    def __init__(self, dims: Sequence[Dim], atoms: Mapping[Symbol | FloorDiv, int]) -> None:
        rows = [dim.terms if isinstance(dim, SymbolicDim) else (((), dim),) for dim in dims]
        terms = [term for row in rows for term in row]
        width = max((len(monomial) for monomial, _ in terms), default=0)
        one = len(atoms)
        """The atom behind the last, which is 1, fills short products."""
        self._factors = np.full((len(terms), max(width, 1)), one, np.intp)
        for number, (monomial, _) in enumerate(terms):
            self._factors[number, : len(monomial)] = [atoms[atom] for atom in monomial]
        self._coefficients = np.array([c for _, c in terms], np.int64)
        counts = np.array([len(row) for row in rows], np.intp)
        self._starts = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.intp)

    def evaluate(self, atoms: NDArray[np.int64]) -> NDArray[np.int64]:
        """The dims' values; the last atom is 1."""
        products = atoms[self._factors].prod(axis=1)
        products *= self._coefficients
        return np.asarray(np.add.reduceat(products, self._starts), np.int64)

    def bounds(self, lows: NDArray[Any], highs: NDArray[Any]) -> tuple[Any, Any, Any]:
        """Least and largest values over intervals of the atoms, and the largest magnitude met."""
        least, most = lows[self._factors[:, 0]], highs[self._factors[:, 0]]
        for column in self._factors.T[1:]:
            ends = [a * b for a in (least, most) for b in (lows[column], highs[column])]
            least, most = np.minimum.reduce(ends), np.maximum.reduce(ends)
        scaled = [end * self._coefficients for end in (least, most)]
        magnitude = np.add.reduceat(np.maximum(*map(np.abs, scaled)), self._starts)
        least, most = np.minimum(*scaled), np.maximum(*scaled)
        low, high = (np.add.reduceat(end, self._starts) for end in (least, most))
        return low, high, magnitude


class DimTable:
    """Dimensions whose values are asked for together."""

    def __init__(self, dims: Iterable[Dim]) -> None:
        self.dims: list[Dim] = list(dict.fromkeys(dims))
        """The distinct dimensions, in the order of their values."""
        self.symbols = sorted(symbols_of(*self.dims))
        self._position = {dim: i for i, dim in enumerate(self.dims)}
        atoms: dict[Symbol | FloorDiv, int] = {Symbol(n): i for i, n in enumerate(self.symbols)}
        self._quotients: list[tuple[_Polynomials, NDArray[np.int64]]] = []
        """Levels of floor divisions, inner ones first: numerators and divisors."""
        for level in _levels(self.dims):
            divisors = np.array([atom.divisor for atom in level], np.int64)
            known = _Polynomials([atom.numerator for atom in level], atoms)
            self._quotients.append((known, divisors))
            atoms.update({atom: len(atoms) + i for i, atom in enumerate(level)})
        # The factor that fills short products is behind the atoms of its own level.
        self._values = _Polynomials(self.dims, atoms) if self.dims else None

    def __len__(self) -> int:
        return len(self.dims)

    def index(self, dim: Dim) -> int:
        """The position of a dimension's value."""
        return self._position[dim]

    def evaluate(self, values: Mapping[str, int]) -> NDArray[np.int64]:
        """The value of each dimension.

        Only for values inside a box that `bounds` has found to be exact. Raises UnboundSymbolError.
        """
        if self._values is None:
            return np.zeros(0, np.int64)
        try:
            atoms = np.array([*(values[name] for name in self.symbols), 1], np.int64)
        except KeyError as error:
            raise UnboundSymbolError(f"the symbol {error.args[0]!r} has no value") from None
        for numerators, divisors in self._quotients:
            made = numerators.evaluate(atoms) // divisors
            atoms = np.concatenate((atoms[:-1], made, atoms[-1:]))
        return self._values.evaluate(atoms)

    def bounds(self, box: Mapping[str, tuple[int, int]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """A lower and an upper bound of each dimension over a box, by interval arithmetic.

        Raises OverflowError: a value inside the box may not be exact in 64 bits.
        """
        if self._values is None:
            return np.zeros(0), np.zeros(0)
        ends = [np.array([*(box[n][i] for n in self.symbols), 1], np.float64) for i in (0, 1)]
        for numerators, divisors in self._quotients:
            *made, magnitude = numerators.bounds(*ends)
            _check_exact(magnitude)
            floors = [np.floor(end / divisors) for end in made]
            ends = [np.concatenate((e[:-1], f, e[-1:])) for e, f in zip(ends, floors, strict=True)]
        least, most, magnitude = self._values.bounds(*ends)
        _check_exact(magnitude)
        return least, most


def _check_exact(magnitude: NDArray[Any]) -> None:
    if magnitude.size and not float(magnitude.max()) < EXACT_BOUND:
        raise OverflowError("an extent does not fit into 64 bits")


def _levels(dims: Sequence[Dim]) -> list[list[FloorDiv]]:
    """Every floor division in the dims, by how deep they are nested."""
    depths: dict[FloorDiv, int] = {}

    def depth_of(dim: Dim) -> int:
        terms = dim.terms if isinstance(dim, SymbolicDim) else ()
        deepest = 0
        for monomial, _ in terms:
            for atom in monomial:
                if isinstance(atom, FloorDiv):
                    if atom not in depths:
                        depths[atom] = depth_of(atom.numerator) + 1
                    deepest = max(deepest, depths[atom])
        return deepest

    for dim in dims:
        depth_of(dim)
    count = max(depths.values(), default=0)
    return [[a for a, depth in depths.items() if depth == level + 1] for level in range(count)]


def bounds_of(dim: Dim, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """A lower and an upper bound of a dimension over a box, in exact arithmetic.

    The bounds are attained where each symbol's growth has one sign, and where the dimension has one
    symbol of at most a few thousand values; elsewhere interval arithmetic may give wider ones.
    """
    if isinstance(dim, int):
        return dim, dim
    names = sorted(symbols_of(dim))
    if len(names) == 1:
        (name,), (low, high) = names, box[names[0]]
        if high - low < _MAX_POINTS and not _is_monotone(dim):
            found = [evaluate_dim(dim, {name: value}) for value in range(low, high + 1)]
            return min(found), max(found)
    return _interval(dim, box)


def upper_bound(dim: Dim, box: Mapping[str, tuple[int, int]]) -> Dim | None:
    """An upper bound of a dimension in those of its symbols that the box lacks.

    These, and what the box has, are at least 0. None where a quotient depends on the box.
    """
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        if any(isinstance(a, FloorDiv) and symbols_of(a.numerator) & box.keys() for a in monomial):
            return None
        ends = {name: box[name][coefficient > 0] for name in symbols_of(dim) & box.keys()}
        total = total + substitute_dim(SymbolicDim(((monomial, coefficient),)), ends)
    return total


def _is_monotone(dim: SymbolicDim) -> bool:
    return all(c > 0 or not m for m, c in dim.terms) or all(c < 0 or not m for m, c in dim.terms)


def _interval(dim: Dim, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if isinstance(dim, int):
        return dim, dim
    least = most = 0
    for monomial, coefficient in dim.terms:
        ends = _product_interval(monomial, box)
        scaled = (ends[0] * coefficient, ends[1] * coefficient)
        least, most = least + min(scaled), most + max(scaled)
    return least, most


def _product_interval(monomial: Monomial, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    least = most = 1
    for atom in monomial:
        if isinstance(atom, FloorDiv):
            low, high = (end // atom.divisor for end in _interval(atom.numerator, box))
        else:
            low, high = box[atom.name]
        ends = [a * b for a in (least, most) for b in (low, high)]
        least, most = min(ends), max(ends)
    return least, most
