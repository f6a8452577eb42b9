"""Symbols of a graph: bound by the inputs, and by results whose size a run determines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import BindingError, ShapeError
from smelt.types import DType, Symbol, SymbolicDim, TensorType, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.ir import Array, Graph, Node, Value
    from smelt.types import Dim


def bind_symbols(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Values of the symbols in the types of the inputs. Raises BindingError."""
    names = {value.name for value in graph.inputs}
    unknown = sorted(set(inputs) - names)
    if unknown:
        raise BindingError(
            f"no input is named {unknown[0]!r}; there are {', '.join(sorted(names))}"
        )
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        if value.name not in inputs:
            raise BindingError(f"no array is given for the input {value.name!r} ({value.type})")
        _check_array(value, inputs[value.name])
        for dim, extent in zip(value.tensor.shape, inputs[value.name].shape, strict=True):
            name = _bare_symbol(dim)
            if name is not None:
                symbols.setdefault(name, extent)
    for value in graph.inputs:
        shape = inputs[value.name].shape
        wrong = first_mismatch(value.tensor.shape, shape, symbols)
        if wrong is not None:
            raise BindingError(
                f"input {value.name!r} is {value.type}, its array has shape {list(shape)}: {wrong}"
            )
    return symbols


def _check_array(value: Value, array: Array) -> None:
    kind = value.tensor
    if kind.dtype is DType.BFLOAT16:
        raise BindingError(f"input {value.name!r} is bfloat16, in which no reference computes")
    if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
        raise BindingError(
            f"input {value.name!r} is {kind} and its array is {array.dtype}{list(array.shape)}"
        )


def _bare_symbol(dim: Dim) -> str | None:
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


def check_result(
    graph: Graph, node: Node, value: Value, array: Array, symbols: dict[str, int]
) -> None:
    """Check a result against its type, binding what the run determines. Raises ShapeError."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return
    if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
        found = f"{array.dtype}{list(array.shape)}"
        raise ShapeError(f"{value.name} is inferred as {kind}, not {found}", node=str(node))
    for dim, extent in zip(kind.shape, array.shape, strict=True):
        name = _bare_symbol(dim)
        if name is not None and name not in symbols:
            symbols[name] = extent
            if extent > graph.symbol_bounds.get(name, extent):
                raise ShapeError(
                    f"{name} came out as {extent}, above its declared maximum "
                    f"{graph.symbol_bounds[name]}",
                    node=str(node),
                )
    wrong = first_mismatch(kind.shape, array.shape, symbols)
    if wrong is not None:
        raise ShapeError(f"{value.name} is inferred as {kind}: {wrong}", node=str(node))
