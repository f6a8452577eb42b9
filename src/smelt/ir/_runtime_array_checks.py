"""Checks of the arrays of a run against their inferred types and the guards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from smelt.errors import ShapeError
from smelt.types import Dim, Guard, TensorType, evaluate_dim, symbol_of, symbols_of

if TYPE_CHECKING:
    from smelt.ir._graph import Value
    from smelt.ir._op import Array


def first_mismatch(
    dims: Iterable[Dim], extents: Iterable[int], symbols: Mapping[str, int]
) -> str | None:
    """Return a description of the first extent that differs from its dimension, or None.

    Dimensions with symbols that have no value are skipped.
    """
    for axis, (dim, extent) in enumerate(zip(dims, extents, strict=True)):
        if symbols_of(dim) <= symbols.keys():
            expected = evaluate_dim(dim, symbols)
            if expected != extent:
                formula = "" if isinstance(dim, int) else f" ({dim})"
                return f"axis {axis} must be {expected}{formula}, not {extent}"
    return None


def check_guards(guards: Iterable[Guard], symbols: Mapping[str, int]) -> None:
    """Check the guards whose symbols all have values. Raises ShapeError when one fails."""
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
    """Check an array against the type of its value, and bind symbols that have no value yet.

    Args:
        value: the value of the graph.
        array: its array in this run.
        symbols: values of symbols; new ones are added.
        where: the node that the error names.
        bounds: upper bounds of symbols that a run determines.

    Raises ShapeError when the array does not fit the type or exceeds a bound.
    """
    kind = value.type
    if not isinstance(kind, TensorType):
        return
    if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
        actual = f"{array.dtype}{list(array.shape)}"
        raise ShapeError(
            f"the result {value.name} is {actual}, but {kind} was inferred", node=where
        )
    for dim, extent in zip(kind.shape, array.shape, strict=True):
        name = symbol_of(dim)
        if name is not None and name not in symbols:
            symbols[name] = extent
            maximum: Dim = extent if bounds is None else bounds.get(name, extent)
            if symbols_of(maximum) <= symbols.keys() and extent > evaluate_dim(maximum, symbols):
                raise ShapeError(
                    f"the symbol {name} is {extent} in this run, above its declared maximum "
                    f"{maximum}",
                    node=where,
                )
    wrong = first_mismatch(kind.shape, array.shape, symbols)
    if wrong is not None:
        raise ShapeError(
            f"the result {value.name} does not have the inferred type {kind}: {wrong}", node=where
        )
