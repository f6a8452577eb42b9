"""Inputs to compare on: the user's, and random ones for the rest, one set for each plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.builder import optimization_profiles_of
from smelt.errors import BindingError, BuildError
from smelt.ir import clone
from smelt.types import (
    TensorType,
    evaluate_dim,
    fixed_shape,
    read_array,
    read_arrays,
    require_array,
    require_dict,
    require_int,
    substitute_dim,
    symbols_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from smelt.builder import ShapeSpec
    from smelt.ir import Array, Graph
    from smelt.types import ArrayHeader, DType


def inputs_of(given: object) -> dict[str, Array]:
    """Arrays by the names of inputs. Raises BindingError."""
    named = {} if given is None else require_dict(given, "inputs", BindingError)
    return {
        name: require_array(array, f"input {name!r}", BindingError) for name, array in named.items()
    }


def shapes_of_inputs(
    graph: Graph, inputs: Mapping[str, Array], shapes: Mapping[str, ShapeSpec] | None
) -> dict[str, ShapeSpec] | None:
    """What is said of shapes, completed by the arrays where the network leaves extents open.

    Raises BindingError: an array is for no input.
    """
    found = {} if shapes is None else require_dict(shapes, "shapes", BuildError)
    for name, given in inputs.items():
        array = require_array(given, f"input {name!r}", BindingError)
        kind = _type_of_input(graph, name, array)
        if name not in found and symbols_of(*kind.shape):
            found[name] = fixed_shape(array.shape)
    return found or None


def _type_of_input(graph: Graph, name: str, given: Array | ArrayHeader) -> TensorType:
    """The type of an input. Raises BindingError: there is none, or an array has other axes."""
    known = {value.name: value for value in graph.inputs}
    if name not in known:
        raise BindingError(f"there is no input {name[:80]!r}; the inputs are {', '.join(known)}")
    kind = known[name].tensor
    if len(given.shape) != len(kind.shape):
        raise BindingError(f"input {name!r} is {kind} and its array {given.dtype}{[*given.shape]}")
    return kind


def input_sets(
    graph: Graph,
    inputs: Mapping[str, Array],
    shapes: Mapping[str, ShapeSpec] | None,
    max_batch_size: int,
    seed: int,
) -> list[dict[str, Array]]:
    """A complete set of inputs for each plan that the shapes ask for, at its best sizes."""
    seed = require_int(seed, "seed", BindingError, least=0)
    sets: list[dict[str, Array]] = []
    for number, box in enumerate(optimization_profiles_of(graph, shapes, max_batch_size)):
        sizes = {name: bounds.best for name, bounds in box.items()}
        rng = np.random.default_rng(seed + number)
        made: dict[str, Array] = {}
        for value in graph.inputs:
            kind = value.tensor
            shape = tuple(evaluate_dim(d, sizes) for d in kind.shape)
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


def load_inputs(path: str, graph: Graph | None = None) -> dict[str, Any]:
    """The arrays of an ``.npz`` file, by name.

    With ``graph`` they are for its inputs, and nothing is read where one is not.

    Raises BindingError: it is not an archive, or an array is for no input of ``graph``.
    """

    def is_input(name: str, header: ArrayHeader) -> bool:
        if graph is not None:
            _check_input(graph, name, header)
        return True

    return load_archive(path, is_input)


def load_input(path: str, name: str, graph: Graph) -> Array:
    """The array of a ``.npy`` file for an input of ``graph``.

    Raises BindingError: it is none, or not for this input; no element is read then.
    """
    return _load_array(path, partial(_check_input, graph, name))


def _check_input(graph: Graph, name: str, header: ArrayHeader) -> None:
    kind = _type_of_input(graph, name, header)
    if not _fits(kind, header):
        detail = f"{header.dtype}{[*header.shape]}"
        raise BindingError(f"input {name!r} is {kind} and its array {detail}")


def _fits(kind: TensorType, header: ArrayHeader) -> bool:
    """Whether an array has a tensor's axes, and its extents where these are fixed."""
    return len(kind.shape) == len(header.shape) and all(
        not isinstance(dim, int) or dim == extent
        for dim, extent in zip(kind.shape, header.shape, strict=True)
    )


def load_archive(path: str, wanted: Callable[[str, ArrayHeader], bool]) -> dict[str, Array]:
    """The arrays of an ``.npz`` file that are wanted, by name. Raises BindingError: it is none."""
    try:
        return read_arrays(path, wanted)
    except (OSError, ValueError) as error:
        raise _not_read(path, "an .npz archive", "savez", error) from error


def check_output(path: str, name: str, kind: TensorType, header: ArrayHeader) -> None:
    """Raise BindingError: a recorded array cannot be what the network gives."""
    if not _fits(kind, header):
        detail = f"{header.dtype}{[*header.shape]}"
        raise BindingError(f"output {name!r} is {kind}, and {path} has {detail}")


def load_output(path: str, name: str, kind: TensorType) -> Array:
    """The array of a ``.npy`` file for an output. Raises BindingError: it is none."""
    return _load_array(path, partial(check_output, path, name, kind))


def _load_array(path: str, check: Callable[[ArrayHeader], None]) -> Array:
    try:
        return read_array(path, check)
    except (OSError, ValueError) as error:
        raise _not_read(path, "a .npy array", "save", error) from error


def _not_read(path: str, kind: str, writer: str, error: Exception) -> BindingError:
    detail = f"{error}; numpy.{writer} writes them"
    reason = error.strerror if isinstance(error, OSError) else detail
    return BindingError(f"{path} cannot be read as {kind}: {reason}")
