"""Binding of the symbols of a graph to the extents of its input arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import BindingError
from smelt.ir import first_mismatch
from smelt.types import symbol_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.ir import Array, Graph


def bind_symbols(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Return the values of the symbols in the types of the inputs.

    Raises BindingError when an input is missing or unknown, or an array does not fit its input.
    """
    names = {value.name for value in graph.inputs}
    unknown = sorted(set(inputs) - names)
    if unknown:
        raise BindingError(
            f"there is no input {unknown[0]!r}; the inputs are {', '.join(sorted(names))}"
        )
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        if value.name not in inputs:
            raise BindingError(f"the array of input {value.name!r} ({value.type}) is missing")
        kind, array = value.tensor, inputs[value.name]
        if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
            actual = f"{array.dtype}{list(array.shape)}"
            raise BindingError(f"input {value.name!r} is {kind}, but its array is {actual}")
        for dim, extent in zip(kind.shape, array.shape, strict=True):
            name = symbol_of(dim)
            if name is not None:
                symbols.setdefault(name, extent)
    for value in graph.inputs:
        shape = inputs[value.name].shape
        mismatch = first_mismatch(value.tensor.shape, shape, symbols)
        if mismatch is not None:
            raise BindingError(
                f"input {value.name!r} is {value.type}, but its array has shape {list(shape)}: "
                f"{mismatch}"
            )
    return symbols
