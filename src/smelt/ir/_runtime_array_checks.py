"""Arrays of a run against what was inferred of them, and the guards on their extents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import ShapeError
from smelt.types import Symbol, SymbolicDim, TensorType, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.ir._graph import Value
    from smelt.ir._op import Array
    from smelt.types import Dim, Guard


def symbol_of(dim: Dim) -> str | None:
    """The name of the symbol that the dim is, None where it is anything else."""
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def first_mismatch(
    dims: Iterable[Dim], extents: Iterable[int], symbols: Mapping[str, int]
) -> str | None:
    """What is wrong with extents where dims are declared, None when nothing is."""
    for axis, (dim, extent) in enumerate(zip(dims, extents, strict=True)):
        if symbols_of(dim) <= symbols.keys():
            expected = evaluate_dim(dim, symbols)
            if expected != extent:
                known = "" if isinstance(dim, int) else f" ({dim})"
                return f"axis {axis} must be {expected}{known}, not {extent}"
    return None


def check_guards(guards: Iterable[Guard], symbols: Mapping[str, int]) -> None:
    """Check what types assume, as far as the symbols are known. Raises ShapeError."""
    for guard in guards:
        if guard.symbols <= symbols.keys() and not guard.holds(symbols):
            raise guard.violation(symbols)


def check_array(
    value: Value,
    array: Array,
    symbols: dict[str, int],
    where: str,
    bounds: Mapping[str, Dim] | None = None,
) -> None:
    """Check an array against the type of its value, binding symbols that have no value yet.

    ``bounds`` has the largest values that symbols may come to have. Raises ShapeError naming
    ``where``.
    """
    kind = value.type
    if not isinstance(kind, TensorType):
        return
    if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
        found = f"{array.dtype}{list(array.shape)}"
        raise ShapeError(f"{value.name} is inferred as {kind}, not {found}", node=where)
    for dim, extent in zip(kind.shape, array.shape, strict=True):
        name = symbol_of(dim)
        if name is not None and name not in symbols:
            symbols[name] = extent
            most: Dim = extent if bounds is None else bounds.get(name, extent)
            if symbols_of(most) <= symbols.keys() and extent > evaluate_dim(most, symbols):
                raise ShapeError(
                    f"{name} is {extent} in this run, above its declared maximum {most}", node=where
                )
    wrong = first_mismatch(kind.shape, array.shape, symbols)
    if wrong is not None:
        raise ShapeError(f"{value.name} is inferred as {kind}: {wrong}", node=where)
