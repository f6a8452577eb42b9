"""Inputs of a comparison: the user's arrays and random ones, one set for each plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.builder import optimization_profiles_of, specialise
from smelt.errors import BindingError, BuildError
from smelt.ir import clone
from smelt.types import (
    TensorType,
    evaluate_dim,
    fixed_shape,
    random_array,
    read_array,
    read_arrays,
    require_array,
    require_dict,
    require_int,
    symbols_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.builder import ShapeSpec
    from smelt.ir import Array, Graph
    from smelt.types import ArrayHeader


def inputs_of(inputs: object) -> dict[str, Array]:
    """Return the user's input arrays by name, after a check of their types.

    Raises:
        BindingError: the argument is not a dictionary of arrays.
    """
    arrays = {} if inputs is None else require_dict(inputs, "inputs", BindingError)
    return {
        name: require_array(array, f"input {name!r}", BindingError)
        for name, array in arrays.items()
    }


def shapes_of_inputs(
    graph: Graph, inputs: Mapping[str, Array], shapes: Mapping[str, ShapeSpec] | None
) -> dict[str, ShapeSpec] | None:
    """Return the shapes for the build, with those of the arrays for inputs with open extents.

    Args:
        graph: the network.
        inputs: the user's arrays by the input's name.
        shapes: the user's shapes, which take precedence.

    Raises:
        BindingError: there is no input of an array's name, or an array has another rank.
    """
    completed = {} if shapes is None else require_dict(shapes, "shapes", BuildError)
    for name, array in inputs.items():
        kind = _type_of_input(graph, name, array)
        if name not in completed and symbols_of(*kind.shape):
            completed[name] = fixed_shape(array.shape)
    return completed or None


def _type_of_input(graph: Graph, name: str, array: Array | ArrayHeader) -> TensorType:
    """Return the type of the input that an array is for.

    Raises:
        BindingError: there is no such input, or the array has another rank.
    """
    known = {value.name: value for value in graph.inputs}
    if name not in known:
        raise BindingError(f"there is no input {name[:80]!r}; the inputs are {', '.join(known)}")
    kind = known[name].tensor
    if len(array.shape) != len(kind.shape):
        raise BindingError(f"input {name!r} is {kind}, but its array is {_array_type(array)}")
    return kind


def _array_type(array: Array | ArrayHeader) -> str:
    return f"{array.dtype}{[*array.shape]}"


def input_sets(
    graph: Graph,
    inputs: Mapping[str, Array],
    shapes: Mapping[str, ShapeSpec] | None,
    max_batch_size: int,
    seed: int,
) -> list[dict[str, Array]]:
    """Return a complete set of inputs for each plan, at the plan's best sizes.

    Args:
        graph: the network.
        inputs: the user's arrays by the input's name; missing ones are random.
        shapes: shapes as for `build`; each profile of them gives a plan.
        max_batch_size: batch, if the network leaves it open.
        seed: seed of the random inputs of the first plan.
    """
    seed = require_int(seed, "seed", BindingError, minimum=0)
    sets: list[dict[str, Array]] = []
    for number, profile in enumerate(optimization_profiles_of(graph, shapes, max_batch_size)):
        sizes = {name: bounds.best for name, bounds in profile.items()}
        rng = np.random.default_rng(seed + number)
        arrays: dict[str, Array] = {}
        for value in graph.inputs:
            kind = value.tensor
            shape = tuple(evaluate_dim(d, sizes) for d in kind.shape)
            arrays[value.name] = random_array(kind.dtype.numpy, shape, rng)
        sets.append(arrays | dict(inputs))
    return sets


def fix_shapes(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """Return a copy of a graph whose inputs have the shapes of given arrays."""
    fixed = clone(graph)
    values: dict[str, int] = {}
    for value in fixed.inputs:
        for dim, extent in zip(value.tensor.shape, inputs[value.name].shape, strict=True):
            if not isinstance(dim, int) and len(symbols_of(dim)) == 1:
                values.setdefault(str(dim), int(extent))
    specialise(fixed, values)
    return fixed


def load_inputs(path: str, graph: Graph | None = None) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file by name.

    Args:
        path: the file.
        graph: network whose inputs the arrays are for; None for no check. The arrays are checked by
            their headers, before any element is read.

    Raises:
        BindingError: the file is not an archive, or an array does not fit an input of ``graph``.
    """

    def is_input(name: str, header: ArrayHeader) -> bool:
        if graph is not None:
            _check_input(graph, name, header)
        return True

    return read_arrays(path, is_input)


def load_input(path: str, name: str, graph: Graph) -> Array:
    """Return the array of a ``.npy`` file for an input of ``graph``.

    Raises:
        BindingError: the file is not a ``.npy`` file, or the array does not fit the input, which is
            checked before any element is read.
    """
    return read_array(path, partial(_check_input, graph, name))


def _check_input(graph: Graph, name: str, header: ArrayHeader) -> None:
    kind = _type_of_input(graph, name, header)
    if not _fits(kind, header):
        raise BindingError(f"input {name!r} is {kind}, but its array is {_array_type(header)}")


def _fits(kind: TensorType, header: ArrayHeader) -> bool:
    """Return whether an array has the rank and the fixed extents of a tensor."""
    return len(kind.shape) == len(header.shape) and all(
        not isinstance(dim, int) or dim == extent
        for dim, extent in zip(kind.shape, header.shape, strict=True)
    )


def check_output(path: str, name: str, kind: TensorType, header: ArrayHeader) -> None:
    """Check that a recorded array has the shape of an output.

    Raises:
        BindingError: it has another shape.
    """
    if not _fits(kind, header):
        raise BindingError(f"output {name!r} is {kind}, but {path} has {_array_type(header)}")


def load_output(path: str, name: str, kind: TensorType) -> Array:
    """Return the array of a ``.npy`` file for an output.

    Raises:
        BindingError: the file is not a ``.npy`` file, or the array has another shape.
    """
    return read_array(path, partial(check_output, path, name, kind))
