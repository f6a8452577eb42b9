"""Refit: compute packed weights from new arrays by the recipes that the build recorded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cpu import CpuMemory
from smelt.errors import BindingError, GraphError
from smelt.ir import Constant, RecipeBudget, compute_untrusted
from smelt.ops import derived_overflow_reason, invalid_scale_reason, recipe_from_json
from smelt.types import require_array, shared_formula_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine import EngineHeader, Json, Weight


_MAX_SHOWN_NAMES: Final = 20
"""Number of weight names that a message lists."""


class _SourceResolver:
    """Resolves the sources of recipes to new arrays, and records the names that were requested."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self.requested: list[str] = []

    def resolve(self, name: str) -> Constant:
        self.requested.append(name)
        array = self.arrays.get(name)
        return Constant(name, np.zeros(0, np.float32) if array is None else array)


@shared_formula_limit
def refitted_weights(
    headers: Sequence[EngineHeader],
    old: Sequence[NDArray[np.uint8]],
    arrays: Mapping[str, NDArray[Any]],
) -> list[NDArray[np.uint8]]:
    """Return copies of the packed weights, recomputed where they depend on ``arrays``.

    Args:
        headers: headers of the engine and of its partitions.
        old: the packed weights of each.
        arrays: new arrays of the model, by name.

    Raises:
        BindingError: a name is unknown, an array differs in shape or dtype from the one that it
            replaces, a scale is invalid, or arrays that were folded together are not all given.
    """
    arrays = {name: _array(name, array) for name, array in arrays.items()}
    budget = RecipeBudget()
    for header in headers:
        _check_arrays(header, arrays)
        for recipe in header.scales:
            if (scale := _DerivedConstant.of(recipe, arrays, budget)) is not None:
                reason = invalid_scale_reason(scale.computed())
                if reason is not None:
                    raise BindingError(f"the new {scale.description} is invalid: {reason}")
    used: set[str] = set()
    refitted = [
        _refitted(header, own, arrays, budget, used)
        for header, own in zip(headers, old, strict=True)
    ]
    unknown = sorted(set(arrays) - used)
    if unknown:
        raise BindingError(
            f"the engine has no refittable weight {', '.join(unknown)}; it has: "
            f"{_refittable(headers)}"
        )
    return refitted


def _refitted(
    header: EngineHeader,
    old: NDArray[np.uint8],
    arrays: Mapping[str, NDArray[Any]],
    budget: RecipeBudget,
    used: set[str],
) -> NDArray[np.uint8]:
    """Return the packed weights of one engine; add the names of the arrays that it uses."""
    packed = CpuMemory().allocate(old.size, "weights").bytes
    packed[:] = old
    for weight in header.weights:
        derived = (
            None if weight.recipe is None else _DerivedConstant.of(weight.recipe, arrays, budget)
        )
        if derived is not None:
            used.update(derived.new_names)
            _store(weight, derived.combined(), packed, derived.description)
    packed.flags.writeable = False
    return packed


def _check_arrays(header: EngineHeader, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Check shapes and dtypes: a recipe might also accept arrays of other shapes or dtypes."""
    for old in header.given:
        array = arrays.get(old.name)
        if array is not None and (array.shape, array.dtype) != (old.shape, old.dtype.numpy):
            raise BindingError(
                f"the new {_describe(old.name, array)} does not fit: it replaces "
                f"{old.dtype.value}{list(old.shape)}; give an array of the old shape and dtype"
            )


@dataclass(frozen=True, slots=True)
class _DerivedConstant:
    """A constant that depends on new arrays, computed on demand."""

    constant: Constant
    new_names: tuple[str, ...]
    """Names of the new arrays that it depends on."""
    description: str
    budget: RecipeBudget

    @classmethod
    def of(
        cls, recipe: Json, arrays: Mapping[str, NDArray[Any]], budget: RecipeBudget
    ) -> _DerivedConstant | None:
        """Return the constant of a recipe; None if it depends on no new array."""
        sources = _SourceResolver(arrays)
        constant = recipe_from_json(recipe, sources.resolve)
        new_names = tuple(dict.fromkeys(name for name in sources.requested if name in arrays))
        if not new_names:
            return None
        missing = sorted(set(sources.requested) - set(new_names))
        if missing:
            raise BindingError(
                f"{new_names[0]} was folded together with {', '.join(missing)}; give these "
                "weights, too"
            )
        description = ", ".join(_describe(name, arrays[name]) for name in new_names)
        return cls(constant, new_names, description, budget)

    def computed(self) -> NDArray[Any]:
        try:
            compute_untrusted(self.constant, budget=self.budget)
        except GraphError as error:
            raise BindingError(
                f"the weights of the kernels cannot be computed from the new {self.description}: "
                f"{error}"
            ) from error
        return self.constant.array

    def combined(self) -> NDArray[Any]:
        """Compute the constant. Raises BindingError: a build would not fold these arrays."""
        array, reason = self.computed(), derived_overflow_reason(self.constant)
        if reason is not None:
            raise BindingError(
                f"the new {self.description} cannot be folded with the other weights as before: "
                f"{reason}; build an engine of the network with the new weights"
            )
        return array


def refitted_network_arrays(
    header: EngineHeader, old: NDArray[np.uint8], arrays: Mapping[str, NDArray[Any]]
) -> NDArray[np.uint8]:
    """Return the arrays of the embedded network, with ``arrays`` replaced.

    Raises:
        BindingError: an array has another shape or dtype than the one that it replaces.
    """
    replaced = [entry for entry in header.network_arrays if entry.name in arrays]
    if not replaced:
        return old
    arrays_bytes = old.copy()
    for entry in replaced:
        array = _array(entry.name, arrays[entry.name])
        _store(entry, array, arrays_bytes, _describe(entry.name, array))
    arrays_bytes.flags.writeable = False
    return arrays_bytes


def _refittable(headers: Sequence[EngineHeader]) -> str:
    """Return the names of refittable arrays as text, shortened if there are many."""
    sources = _SourceResolver({})
    for weight in chain.from_iterable(header.weights for header in headers):
        if weight.recipe is not None:
            recipe_from_json(weight.recipe, sources.resolve)
    names = list(dict.fromkeys(sources.requested))
    description = ", ".join(names[:_MAX_SHOWN_NAMES]) or "none"
    return (
        description
        if len(names) <= _MAX_SHOWN_NAMES
        else f"{description} and {len(names) - _MAX_SHOWN_NAMES} more"
    )


def _array(name: str, value: object) -> NDArray[Any]:
    return require_array(value, f"the new {name}", BindingError)


def _describe(name: str, array: NDArray[Any]) -> str:
    return f"{name} {array.dtype}{list(array.shape)}"


def _store(
    weight: Weight, array: NDArray[Any], memory: NDArray[np.uint8], description: str
) -> None:
    if array.shape != weight.shape or array.dtype != weight.dtype.numpy:
        raise BindingError(
            f"the new {description} does not fit: {weight.name} is computed from it and becomes "
            f"{array.dtype}{list(array.shape)} where {weight.dtype.value}{list(weight.shape)} "
            "is expected; give an array of the old shape and dtype"
        )
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory[weight.offset : weight.offset + data.size] = data
