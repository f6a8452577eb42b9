"""The embedded network of a retunable engine: a graph and its build options.

It is data only, and is read like an untrusted model, even if the engine is signed.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import WeightStore
from smelt.builder._graph_json import (
    MALFORMED_DATA_ERRORS,
    graph_from_data,
    graph_to_data,
    malformed_error,
)
from smelt.builder._optimization_profiles import shapes_from_data, shapes_to_data
from smelt.builder._options import BuildOptions
from smelt.engine import Weight, as_json
from smelt.errors import BuildError, EngineFormatError, EngineMismatchError
from smelt.ir import Constant, compute_untrusted
from smelt.ops import recipe_from_json, recipe_to_json
from smelt.types import Limit, parse_json, shared_formula_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from smelt.engine import EngineFile
    from smelt.errors import SmeltError
    from smelt.ir import Graph

_MAX_OPTION_VALUE: Final = (1 << 63) - 1
"""Largest integer that an option in a file may be."""
_NOT_EMBEDDED_OPTIONS: Final = frozenset({"timing_cache", "tune", "retunable"})
"""Options that concern the process of building; retuning has its own."""
_EMBEDDED_OPTIONS: Final[dict[str, tuple[type[object], ...]]] = {
    field.name: (type(field.default), *((float,) if field.default is None else ()))
    for field in dataclasses.fields(BuildOptions)
    if field.name not in {*_NOT_EMBEDDED_OPTIONS, "shapes"}
}
"""All other options with their allowed types: that of the default, and float where it is None."""


@dataclass(frozen=True, slots=True)
class EmbeddedNetwork:
    """A network in the form in which an engine stores it."""

    text: str = ""
    """JSON text in the engine's header; empty if the engine contains no network."""
    network_arrays: tuple[Weight, ...] = ()
    """Descriptions of the network's arrays."""
    data: NDArray[np.uint8] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint8))
    """The arrays' contents."""


@shared_formula_limit
def embed_network(graph: Graph, options: BuildOptions) -> EmbeddedNetwork:
    """Return a network and its build options in the form in which an engine stores them."""
    store, numbers = WeightStore(), dict[int, int]()
    constants: list[Any] = []
    positions: dict[Constant, int] = {}

    def position(constant: Constant) -> int:
        if constant not in positions:
            positions[constant] = len(constants)
            constants.append(recipe_to_json(constant, array_name))
        return positions[constant]

    def array_name(constant: Constant) -> str:
        """Return the name of an array in recipes: its position, because names may repeat."""
        store.place(constant)
        return str(numbers.setdefault(store.key(constant), len(numbers)))

    written = graph_to_data(graph, position)
    _check_recipes(constants, BuildError)
    option_values = {name: getattr(options, name) for name in _EMBEDDED_OPTIONS}
    document = {
        "options": {**option_values, "shapes": shapes_to_data(options.shapes)},
        "constants": constants,
        "graph": written,
    }
    text = json.dumps(document, separators=(",", ":"))
    entries = (
        Weight(constant.name, constant.type.dtype, constant.array.shape, offset)
        for constant, offset in store.entries
    )
    return EmbeddedNetwork(text, tuple(entries), store.data())


# ---- reading


@shared_formula_limit
def read_embedded_network(file: EngineFile) -> tuple[Graph, BuildOptions]:
    """Return the network that an engine contains, and its build options.

    The engine's header must have been verified.

    Raises:
        BuildError: the engine contains no network.
        EngineFormatError: the embedded network is malformed.
        EngineMismatchError: the network uses a custom op that is registered differently here.
    """
    header = file.header
    if not header.network:
        raise BuildError(
            f"{file.source} does not contain its network and cannot be retuned; build it with "
            "retunable=True (`smelt build --retunable`), or from the model on this machine"
        )
    try:
        network_arrays = _read_network_arrays(header.network_arrays, file.network_arrays)
        document: Any = parse_json(header.network)
        options = _options_from_data(document["options"])
        _check_recipes(document["constants"], EngineFormatError)
        constants = [_constant_from_data(data, network_arrays) for data in document["constants"]]
        compute_untrusted(*constants)
        return graph_from_data(document["graph"], constants), options
    except EngineMismatchError:
        raise
    except MALFORMED_DATA_ERRORS as error:
        raise malformed_error(f"{file.source}: its embedded network", error) from error


def _check_recipes(constants: Sequence[Any], refuse: Callable[[str], SmeltError]) -> None:
    """Check that the recipes do not have too many parts."""
    parts = sum(len(parts) for _, parts in constants)
    Limit.MAX_RECIPE_PARTS.check(parts, "the network's constants have", refuse)


def _read_network_arrays(weights: Sequence[Weight], data: NDArray[np.uint8]) -> list[Constant]:
    constants = [_network_array(weight, data) for weight in weights]
    if sum(constant.array.nbytes for constant in constants) > data.size:
        raise EngineFormatError("the arrays overlap")
    return constants


def _network_array(weight: Weight, data: NDArray[np.uint8]) -> Constant:
    size = math.prod(weight.shape) * weight.dtype.size_bytes
    content = data[weight.offset : weight.offset + size]
    return Constant(weight.name, content.view(weight.dtype.numpy).reshape(weight.shape))


def _constant_from_data(data: Any, network_arrays: Sequence[Constant]) -> Constant:
    def resolve(name: str) -> Constant:
        if not name.isdecimal():
            raise EngineFormatError(f"{name[:60]!r} is not the index of an array of the network")
        return network_arrays[int(name)]

    return recipe_from_json(as_json(data), resolve)


def _options_from_data(data: Any) -> BuildOptions:
    """Return the build options that `embed_network` wrote.

    Raises:
        EngineFormatError: an option is missing, unknown or of another type.
    """
    values = dict(data)
    shapes = shapes_from_data(values.pop("shapes"))
    if values.keys() != _EMBEDDED_OPTIONS.keys():
        raise EngineFormatError("a build option is unknown or missing")
    for name, value in values.items():
        is_number = type(value) is int
        if type(value) not in _EMBEDDED_OPTIONS[name] or (
            is_number and not 0 <= value <= _MAX_OPTION_VALUE
        ):
            raise EngineFormatError(f"the build option {name} is malformed")
    return BuildOptions(**values, shapes=shapes)
