"""Evaluation of many dimensions at once, and their bounds over a box of symbol values.

A plan for a range of shapes has hundreds of extents, strides and offsets. Evaluating them one by
one in Python takes longer than running a small network; a table takes a few numpy calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    terms_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.types._dim import Monomial


EXACT_BOUND: Final = float(1 << 53)
"""Bounds are computed in float64, which is exact for integers of a magnitude below this.

Beyond it, two large terms that cancel could be rounded to a bound that does not hold."""
_MAX_POINTS: Final = 1 << 14
"""Largest range of a symbol over which the bounds of a dimension are found by trying all values."""


class _Polynomials:
    """Sums of products of atoms: one level of a table, evaluated after the levels below it."""

    def __init__(self, dims: Sequence[Dim], atoms: Mapping[Symbol | FloorDiv, int]) -> None:
        rows = [terms_of(dim) for dim in dims]
        terms = [term for row in rows for term in row]
        width = max((len(monomial) for monomial, _ in terms), default=0)
        one = len(atoms)
        """Index of an additional atom with the value 1, which pads short products."""
        self._factors = np.full((len(terms), max(width, 1)), one, np.intp)
        for number, (monomial, _) in enumerate(terms):
            self._factors[number, : len(monomial)] = [atoms[atom] for atom in monomial]
        self._coefficients = np.array([c for _, c in terms], np.int64)
        counts = np.array([len(row) for row in rows], np.intp)
        self._starts = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.intp)

    def evaluate(self, atoms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values of the dimensions; the last of ``atoms`` must be 1."""
        products = atoms[self._factors].prod(axis=1)
        products *= self._coefficients
        return np.asarray(np.add.reduceat(products, self._starts), np.int64)

    def bounds(self, lows: NDArray[Any], highs: NDArray[Any]) -> tuple[Any, Any, Any]:
        """Return least and largest values over intervals, and the largest magnitude involved."""
        least, largest = lows[self._factors[:, 0]], highs[self._factors[:, 0]]
        for column in self._factors.T[1:]:
            ends = [a * b for a in (least, largest) for b in (lows[column], highs[column])]
            least, largest = np.minimum.reduce(ends), np.maximum.reduce(ends)
        scaled = [end * self._coefficients for end in (least, largest)]
        magnitude = np.add.reduceat(np.maximum(*map(np.abs, scaled)), self._starts)
        least, largest = np.minimum(*scaled), np.maximum(*scaled)
        low, high = (np.add.reduceat(end, self._starts) for end in (least, largest))
        return low, high, magnitude


class DimTable:
    """Set of dimensions that are evaluated together."""

    def __init__(self, dims: Iterable[Dim]) -> None:
        self.dims: list[Dim] = list(dict.fromkeys(dims))
        """The distinct dimensions, in the order of their values."""
        self.symbols = sorted(symbols_of(*self.dims))
        self._position = {dim: i for i, dim in enumerate(self.dims)}
        atoms: dict[Symbol | FloorDiv, int] = {Symbol(n): i for i, n in enumerate(self.symbols)}
        self._quotients: list[tuple[_Polynomials, NDArray[np.int64]]] = []
        """Numerators and divisors of the floor divisions of each nesting level, innermost first."""
        for level in _levels(self.dims):
            divisors = np.array([atom.divisor for atom in level], np.int64)
            numerators = _Polynomials([atom.numerator for atom in level], atoms)
            self._quotients.append((numerators, divisors))
            atoms.update({atom: len(atoms) + i for i, atom in enumerate(level)})
        # The atom that pads short products follows the atoms of its own level.
        self._values = _Polynomials(self.dims, atoms) if self.dims else None

    def __len__(self) -> int:
        return len(self.dims)

    def index(self, dim: Dim) -> int:
        """Return the position of the value of a dimension."""
        return self._position[dim]

    def evaluate(self, values: Mapping[str, int]) -> NDArray[np.int64]:
        """Return the value of each dimension.

        The symbol values must be inside a box for which `bounds` has returned. Raises
        UnboundSymbolError when a symbol has no value.
        """
        if self._values is None:
            return np.zeros(0, np.int64)
        for name in self.symbols:
            if name not in values:
                raise UnboundSymbolError(f"the symbol {name!r} has no value")
        atoms = np.array([*(values[name] for name in self.symbols), 1], np.int64)
        for numerators, divisors in self._quotients:
            quotients = numerators.evaluate(atoms) // divisors
            atoms = np.concatenate((atoms[:-1], quotients, atoms[-1:]))
        return self._values.evaluate(atoms)

    def bounds(self, box: Mapping[str, tuple[int, int]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a lower and an upper bound of each dimension over a box, by interval arithmetic.

        Raises OverflowError when a value inside the box may be too large to be exact.
        """
        if self._values is None:
            return np.zeros(0), np.zeros(0)
        ends = [np.array([*(box[n][i] for n in self.symbols), 1], np.float64) for i in (0, 1)]
        for numerators, divisors in self._quotients:
            *bounds, magnitude = numerators.bounds(*ends)
            _check_exact(magnitude)
            floors = [np.floor(end / divisors) for end in bounds]
            ends = [np.concatenate((e[:-1], f, e[-1:])) for e, f in zip(ends, floors, strict=True)]
        least, largest, magnitude = self._values.bounds(*ends)
        _check_exact(magnitude)
        return least, largest


def _check_exact(magnitude: NDArray[Any]) -> None:
    if magnitude.size and not float(magnitude.max()) < EXACT_BOUND:
        raise OverflowError("an extent does not fit into 64 bits")


def _levels(dims: Sequence[Dim]) -> list[list[FloorDiv]]:
    """Return the floor divisions of the dimensions by nesting level, innermost first."""
    found: dict[FloorDiv, None] = {}

    def collect(dim: Dim) -> None:
        for monomial, _ in terms_of(dim):
            for atom in monomial:
                if isinstance(atom, FloorDiv) and atom not in found:
                    collect(atom.numerator)
                    found[atom] = None

    for dim in dims:
        collect(dim)
    deepest = max((atom.depth for atom in found), default=0)
    return [[atom for atom in found if atom.depth == depth] for depth in range(1, deepest + 1)]


def bounds_of(dim: Dim, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return a lower and an upper bound of a dimension over a box, in exact arithmetic.

    The bounds are attained if each symbol only increases or only decreases the dimension, or if
    the dimension has a single symbol with at most ``_MAX_POINTS`` values. Otherwise
    interval arithmetic may give wider bounds.
    """
    if isinstance(dim, int):
        return dim, dim
    names = sorted(symbols_of(dim))
    if len(names) == 1:
        (name,), (low, high) = names, box[names[0]]
        if high - low < _MAX_POINTS and not _is_monotone(dim):
            values = [evaluate_dim(dim, {name: value}) for value in range(low, high + 1)]
            return min(values), max(values)
    return _interval(dim, box)


def upper_bound(dim: Dim, box: Mapping[str, tuple[int, int]]) -> Dim | None:
    """Return an upper bound of a dimension that depends only on symbols outside the box.

    All symbols must be at least 0. Returns None when a quotient depends on a symbol of the box.
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


def _interval(dim: SymbolicDim, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return bounds of a dimension over a box, by interval arithmetic on each term."""
    least = largest = 0
    for monomial, coefficient in dim.terms:
        ends = _product_interval(monomial, box)
        scaled = (ends[0] * coefficient, ends[1] * coefficient)
        least, largest = least + min(scaled), largest + max(scaled)
    return least, largest


def _product_interval(monomial: Monomial, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return bounds of a product of atoms over a box."""
    least = largest = 1
    for atom in monomial:
        if isinstance(atom, FloorDiv):
            low, high = (end // atom.divisor for end in _interval(atom.numerator, box))
        else:
            low, high = box[atom.name]
        ends = [a * b for a in (least, largest) for b in (low, high)]
        least, largest = min(ends), max(ends)
    return least, largest
