"""Inputs to compare on: the user's, and random ones for the rest, one set for each plan."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zipfile import BadZipFile

import numpy as np

from smelt.builder import boxes_of
from smelt.errors import BindingError
from smelt.ir import clone
from smelt.types import TensorType, evaluate_dim, substitute_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.builder import ShapeSpec
    from smelt.ir import Array, Graph
    from smelt.types import DType


def shapes_of_inputs(
    graph: Graph, inputs: Mapping[str, Array], shapes: Mapping[str, ShapeSpec] | None
) -> dict[str, ShapeSpec] | None:
    """What is said of shapes, completed by the arrays where the network leaves extents open.

    Raises BindingError: an array is for no input.
    """
    known = {value.name: value for value in graph.inputs}
    for name in inputs:
        if name not in known:
            raise BindingError(f"no input is called {name!r}; there are {', '.join(known)}")
    found: dict[str, ShapeSpec] = dict(shapes or {})
    for name, given in inputs.items():
        array, kind = np.asarray(given), known[name].tensor
        if array.ndim != len(kind.shape):
            raise BindingError(
                f"input {name!r} is {kind} and its array {array.dtype}{[*array.shape]}"
            )
        if name not in found and symbols_of(*known[name].tensor.shape):
            found[name] = cast("tuple[int, ...]", array.shape)
    return found or None


def input_sets(
    graph: Graph,
    inputs: Mapping[str, Array],
    shapes: Mapping[str, ShapeSpec] | None,
    max_batch_size: int,
    seed: int,
) -> list[dict[str, Array]]:
    """A complete set of inputs for each plan that the shapes ask for, at its best sizes."""
    sets: list[dict[str, Array]] = []
    for number, box in enumerate(boxes_of(graph, shapes, max_batch_size)):
        sizes = {name: bounds.best for name, bounds in box.items()}
        rng = np.random.default_rng(seed + number)
        made: dict[str, Array] = {}
        for value in graph.inputs:
            kind = value.tensor
            shape = tuple(evaluate_dim(d, sizes | graph.symbol_bounds) for d in kind.shape)
            made[value.name] = _random(kind.dtype, shape, rng)
        sets.append(made | {name: np.asarray(array) for name, array in inputs.items()})
    return sets


def _random(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Normal floats; zeros and ones for the rest, which are indices and masks mostly."""
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


def fix_shapes(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """A copy of the graph for inputs of just these shapes."""
    fixed = clone(graph)
    values: dict[str, int] = {}
    for value in fixed.inputs:
        for dim, extent in zip(value.tensor.shape, inputs[value.name].shape, strict=True):
            if not isinstance(dim, int) and len(symbols_of(dim)) == 1:
                values.setdefault(str(dim), int(extent))
    for value in fixed.inputs:
        kind = value.tensor
        shape = tuple(substitute_dim(d, values) for d in kind.shape)
        value.type = TensorType(kind.dtype, shape)
    fixed.infer()
    return fixed


def load_inputs(path: str) -> dict[str, Any]:
    """The arrays of an ``.npz`` file, by name. Raises BindingError: it is none."""
    reason = "it is none; numpy.savez writes them"
    try:
        with Path(path).open("rb") as file:
            found: Any = np.load(file, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, BadZipFile, RuntimeError, zlib.error) as error:
        # What numpy says of anything else is that it may be a pickle, which nobody should load.
        told = error.strerror if isinstance(error, OSError) else None
        raise BindingError(f"{path} cannot be read as an .npz archive: {told or reason}") from error
    raise BindingError(f"{path} cannot be read as an .npz archive: {reason}")
