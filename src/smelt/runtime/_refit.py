"""Refitting: new weights through the transforms that the build recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cpu import CpuMemory
from smelt.errors import BindingError, GraphError
from smelt.ir import Constant, compute_untrusted
from smelt.ops import recipe_from_json, why_not_derived
from smelt.types import given_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smelt.engine import EngineHeader, Weight


_SHOWN_NAMES: Final = 20


class _Sources:
    """The new arrays, by name, and which of a recipe's sources are among them."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.wanted: list[str] = []

    def resolve(self, name: str) -> Constant:
        self.wanted.append(name)
        array = self.arrays.get(name)
        return Constant(name, np.zeros(0, np.float32) if array is None else array)


def refitted_weights(
    header: EngineHeader, old: NDArray[np.uint8], arrays: Mapping[str, NDArray[Any]]
) -> NDArray[np.uint8]:
    """Return a copy of the packed weights in which all that follows from ``arrays`` is new.

    Raises:
        BindingError: a name is unknown, a shape does not fit, or arrays that belong together are
            not all given.
    """
    arrays = {name: _array(name, array) for name, array in arrays.items()}
    fresh = CpuMemory().allocate(old.size, "weights").bytes
    fresh[:] = old
    used: set[str] = set()
    for weight in header.weights:
        if weight.recipe is None:
            continue
        sources = _Sources(arrays)
        constant = recipe_from_json(weight.recipe, sources.resolve)
        given = [name for name in sources.wanted if name in arrays]
        if not given:
            continue
        missing = sorted(set(sources.wanted) - set(given))
        if missing:
            raise BindingError(
                f"{given[0]} was folded together with {', '.join(missing)}; give them as well"
            )
        used.update(given)
        shown = ", ".join(_shown(name, arrays[name]) for name in dict.fromkeys(given))
        _store(weight, _computed(shown, constant), fresh, shown)
    unknown = sorted(set(arrays) - used)
    if unknown:
        raise BindingError(
            f"the engine has no weight {', '.join(unknown)} that can be refitted; "
            f"it has: {_refittable(header)}"
        )
    fresh.flags.writeable = False
    return fresh


def refitted_sources(
    header: EngineHeader, old: NDArray[np.uint8], arrays: Mapping[str, NDArray[Any]]
) -> NDArray[np.uint8]:
    """Return the network's own arrays, ``arrays`` in the place of those that they replace.

    Raises:
        BindingError: an array has another shape or dtype than the one that it replaces.
    """
    given = [source for source in header.sources if source.name in arrays]
    if not given:
        return old
    fresh = old.copy()
    for source in given:
        array = _array(source.name, arrays[source.name])
        _store(source, array, fresh, _shown(source.name, array))
    fresh.flags.writeable = False
    return fresh


def _refittable(header: EngineHeader) -> str:
    """The names of the model's arrays that a refit may replace; not too many."""
    sources = _Sources({})
    for weight in header.weights:
        if weight.recipe is not None:
            recipe_from_json(weight.recipe, sources.resolve)
    names = list(dict.fromkeys(sources.wanted))
    shown = ", ".join(names[:_SHOWN_NAMES]) or "none"
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"


def _array(name: str, given: object) -> NDArray[Any]:
    return given_array(given, f"the new {name}", BindingError)


def _shown(name: str, array: NDArray[Any]) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"


def _computed(given: str, constant: Constant) -> NDArray[Any]:
    try:
        compute_untrusted(constant)
    except GraphError as error:
        raise BindingError(f"the new {given} does not fit: {error}") from error
    reason = why_not_derived(constant)
    if reason is not None:
        raise BindingError(
            f"the new {given} cannot be combined with other weights as the old were: {reason}; "
            "build an engine of the network with the new weights"
        )
    return constant.array


def _store(weight: Weight, array: NDArray[Any], memory: NDArray[np.uint8], given: str) -> None:
    if array.shape != weight.shape or array.dtype != weight.dtype.numpy:
        raise BindingError(
            f"the new {given} does not fit: {weight.name} is made of it, which becomes "
            f"{array.dtype}{list(array.shape)} where {weight.dtype.value}{list(weight.shape)} "
            "is needed; give an array of the old shape and dtype"
        )
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory[weight.offset : weight.offset + data.size] = data
