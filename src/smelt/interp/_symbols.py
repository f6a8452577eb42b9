"""Symbols of a graph, bound by its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import BindingError
from smelt.ir import first_mismatch, symbol_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.ir import Array, Graph, Value


def bind_symbols(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """Values of the symbols in the types of the inputs. Raises BindingError."""
    names = {value.name for value in graph.inputs}
    unknown = sorted(set(inputs) - names)
    if unknown:
        raise BindingError(
            f"there is no input {unknown[0]!r}; the inputs are {', '.join(sorted(names))}"
        )
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        if value.name not in inputs:
            raise BindingError(f"no array is given for the input {value.name!r} ({value.type})")
        _check_array(value, inputs[value.name])
        for dim, extent in zip(value.tensor.shape, inputs[value.name].shape, strict=True):
            name = symbol_of(dim)
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
    if array.dtype != kind.dtype.numpy or array.ndim != kind.rank:
        raise BindingError(
            f"input {value.name!r} is {kind} and its array is {array.dtype}{list(array.shape)}"
        )
