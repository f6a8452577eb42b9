"""Refitting: new weights through the transforms that the build recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cpu import CpuMemory
from smelt.errors import BindingError, GraphError
from smelt.ir import Constant, compute_untrusted
from smelt.ops import derived_overflow_reason, recipe_from_json, why_no_scale
from smelt.types import one_file_of_formulas, require_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from smelt.engine import EngineHeader, Json, Weight


_SHOWN_NAMES: Final = 20


@dataclass(slots=True)
class _Work:
    """Operations that all recipes of a refit have taken: one limit is for all of them."""

    spent: int = 0


class _Sources:
    """The new arrays, by name, and which of a recipe's sources are among them."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.wanted: list[str] = []

    def resolve(self, name: str) -> Constant:
        self.wanted.append(name)
        array = self.arrays.get(name)
        return Constant(name, np.zeros(0, np.float32) if array is None else array)


@one_file_of_formulas()
def refitted_weights(
    header: EngineHeader, old: NDArray[np.uint8], arrays: Mapping[str, NDArray[Any]]
) -> NDArray[np.uint8]:
    """Return a copy of the packed weights in which all that follows from ``arrays`` is new.

    Raises:
        BindingError: a name is unknown, an array does not fit what it replaces, a scale is none, or
            arrays that belong together are not all given.
    """
    arrays = {name: _array(name, array) for name, array in arrays.items()}
    _check_arrays(header, arrays)
    work = _Work()
    for recipe in header.scales:
        if (scale := _Derived.of(recipe, arrays, work)) is not None:
            reason = why_no_scale(scale.computed())
            if reason is not None:
                raise BindingError(f"the new {scale.shown} is invalid: {reason}")
    fresh = CpuMemory().allocate(old.size, "weights").bytes
    fresh[:] = old
    used: set[str] = set()
    for weight in header.weights:
        made = None if weight.recipe is None else _Derived.of(weight.recipe, arrays, work)
        if made is not None:
            used.update(made.given)
            _store(weight, made.combined(), fresh, made.shown)
    unknown = sorted(set(arrays) - used)
    if unknown:
        raise BindingError(
            f"the engine has no refittable weight {', '.join(unknown)}; it has: "
            f"{_refittable(header)}"
        )
    fresh.flags.writeable = False
    return fresh


def _check_arrays(header: EngineHeader, arrays: Mapping[str, NDArray[Any]]) -> None:
    """What recipes begin with must be like the old: a recipe may well make weights of another."""
    for given in header.given:
        array = arrays.get(given.name)
        if array is not None and (array.shape, array.dtype) != (given.shape, given.dtype.numpy):
            raise BindingError(
                f"the new {_shown(given.name, array)} does not fit: it replaces "
                f"{given.dtype.value}{list(given.shape)}; give an array of the old shape and dtype"
            )


@dataclass(frozen=True, slots=True)
class _Derived:
    """What follows from new arrays, and not yet computed."""

    constant: Constant
    given: tuple[str, ...]
    """The new arrays, by name."""
    shown: str
    work: _Work

    @classmethod
    def of(cls, recipe: Json, arrays: Mapping[str, NDArray[Any]], work: _Work) -> _Derived | None:
        """What a recipe makes of new arrays; None where it starts from none of them."""
        sources = _Sources(arrays)
        constant = recipe_from_json(recipe, sources.resolve)
        given = tuple(dict.fromkeys(name for name in sources.wanted if name in arrays))
        if not given:
            return None
        missing = sorted(set(sources.wanted) - set(given))
        if missing:
            raise BindingError(
                f"{given[0]} was folded together with {', '.join(missing)}; give these weights as "
                "well"
            )
        shown = ", ".join(_shown(name, arrays[name]) for name in given)
        return cls(constant, given, shown, work)

    def computed(self) -> NDArray[Any]:
        try:
            self.work.spent = compute_untrusted(self.constant, spent=self.work.spent)
        except GraphError as error:
            raise BindingError(f"the new {self.shown} is invalid: {error}") from error
        return self.constant.array

    def combined(self) -> NDArray[Any]:
        """What was computed, where a build would combine the arrays as well."""
        array, reason = self.computed(), derived_overflow_reason(self.constant)
        if reason is not None:
            raise BindingError(
                f"the new {self.shown} cannot be folded with the other weights as the old one was: "
                f"{reason}; build an engine of the network with the new weights"
            )
        return array


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
    return require_array(given, f"the new {name}", BindingError)


def _shown(name: str, array: NDArray[Any]) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"


def _store(weight: Weight, array: NDArray[Any], memory: NDArray[np.uint8], given: str) -> None:
    if array.shape != weight.shape or array.dtype != weight.dtype.numpy:
        raise BindingError(
            f"the new {given} does not fit: {weight.name} is computed from it and becomes "
            f"{array.dtype}{list(array.shape)} where {weight.dtype.value}{list(weight.shape)} "
            "is needed; give an array of the old shape and dtype"
        )
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory[weight.offset : weight.offset + data.size] = data
