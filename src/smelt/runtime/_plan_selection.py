"""Selection of the plan and the symbol values of a run from the shapes of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Final

from smelt.errors import Argument, BindingError, ContextError, UnboundSymbolError
from smelt.types import evaluate_dim, require_int, symbol_of, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.engine import Binding, EngineHeader, Plan
    from smelt.types import Dim, Shape

    ArrayShapes = Sequence[tuple[int, ...] | None]
    """Shape of the array of each binding; None for an address."""

BATCH: Final = "batch"
"""Name of the symbol of the implicit batch."""
_BATCH_ARGUMENTS: Final = (Argument("max_batch_size"), Argument("shapes"))


def values_from_shapes(
    bindings: Sequence[Binding], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """Return the symbol values for which the inputs have the given shapes.

    Raises:
        BindingError: the shapes are inconsistent; the message names the input and both shapes.
    """
    values: dict[str, int] = {}
    owners: dict[str, str] = {}
    for binding, shape in zip(bindings, shapes, strict=True):
        if len(shape) != len(binding.shape):
            raise _shape_error(binding, shape, f"the array has rank {len(shape)}")
        for extent, dim in zip(shape, binding.shape, strict=True):
            name = symbol_of(dim)
            if name is None:
                continue
            if values.setdefault(name, extent) != extent:
                raise _shape_error(binding, shape, f"{owners[name]} has {name} = {values[name]}")
            owners.setdefault(name, binding.name)
    for binding, shape in zip(bindings, shapes, strict=True):
        for axis, (extent, dim) in enumerate(zip(shape, binding.shape, strict=True)):
            if _evaluate(dim, values, binding) != extent:
                is_larger_batch = axis == 0 and dim == 1 and extent > 1
                arguments = _BATCH_ARGUMENTS if is_larger_batch else ()
                raise _shape_error(binding, shape, f"axis {axis} must be {dim}", *arguments)
    return values


def _evaluate(dim: Dim, values: Mapping[str, int], binding: Binding) -> int:
    try:
        return evaluate_dim(dim, values)
    except UnboundSymbolError as error:
        raise BindingError(f"{binding.name}: {error}") from error


def _shape_error(
    binding: Binding, shape: tuple[int, ...], reason: str, *arguments: Argument
) -> BindingError:
    """Return the error for a shape, with the arguments that would allow a larger batch."""
    expected = ", ".join(map(str, binding.shape))
    message = (
        f"{binding.name}: the array's shape {list(shape)} does not match [{expected}]: {reason}"
    )
    if arguments:
        names = " or ".join(map(str, arguments))
        message += (
            f"; to allow larger batches, build the engine with {names} from a model with a dynamic "
            "batch size"
        )
    return BindingError(message, arguments=arguments)


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """Plan, symbol values and shapes of a run, derived from the shapes of its inputs."""

    plan: int
    """Index of the plan."""
    values: dict[str, int]
    """Value of every symbol; the maximum for symbols that the run determines."""
    shapes: tuple[tuple[int, ...], ...]
    """Shape of each binding; the largest possible one if the run determines an extent."""
    extents: tuple[Shape, ...]
    """Shape of each binding in the plan's symbols."""
    data_dependent_symbols: frozenset[str]
    """Symbols whose values the run determines."""


def call_from_values(header: EngineHeader, values: dict[str, int]) -> ResolvedCall:
    """Return the call for symbol values.

    Raises:
        ContextError: the batch is larger than the engine's maximum.
        BindingError: no plan covers these values.
    """
    number = find_plan(header, values)
    plan = header.plans[number]
    shapes = tuple(
        tuple([max(evaluate_dim(dim, values), 0) for dim in max_shape])
        for max_shape in plan.max_shapes(header.bindings)
    )
    extents = tuple(plan.shapes(header.bindings))
    return ResolvedCall(number, values, shapes, extents, frozenset(plan.data_dependent_symbols))


def call_for_arrays(
    call: ResolvedCall, bindings: Sequence[Binding], shapes: ArrayShapes
) -> ResolvedCall:
    """Return the call for arrays of these shapes; None stands for an address.

    If the run determines the first extent of an output, its array may be shorter than the engine's
    maximum. The extent is then limited to that of the array.

    Raises:
        BindingError: an array is too small.
    """
    values, needed = call.values.copy(), list(call.shapes)
    for index, (binding, shape) in enumerate(zip(bindings, shapes, strict=True)):
        if shape is None:
            continue
        extents = () if binding.is_input else call.extents[index]
        name = symbol_of(extents[0]) if extents else None
        if name in call.data_dependent_symbols and shape[1:] == needed[index][1:] and shape:
            values[name] = min(values[name], shape[0])
            needed[index] = (min(needed[index][0], shape[0]), *shape[1:])
        check_capacity(binding, shape, needed[index])
    return replace(call, values=values, shapes=tuple(needed))


def values_from_batch(header: EngineHeader, batch_size: int, shapes: ArrayShapes) -> dict[str, int]:
    """Return the symbol values for a batch size and for the known shapes of the inputs.

    Raises:
        ContextError: the batch is not a positive number or too large, or the engine has no batch
            symbol and it is not 1.
        BindingError: an input's array is neither flat nor has the rank of the input.
    """
    require_int(batch_size, "the batch size", ContextError, minimum=1)
    inputs = [(b, s) for b, s in zip(header.bindings, shapes, strict=True) if b.is_input]
    values: dict[str, int] = {}
    if any(BATCH in symbols_of(*binding.shape) for binding, _ in inputs):
        values[BATCH] = batch_size
    elif header.max_batch_size is not None and batch_size > header.max_batch_size:
        raise _batch_too_large(batch_size, header.max_batch_size)
    elif batch_size != 1:
        raise ContextError(
            "this engine takes its batch size from the shapes of the arrays: pass batch size 1, "
            f"not {batch_size}"
        )
    for binding, shape in inputs:
        if shape is None:
            continue
        if len(shape) != len(binding.shape):
            # If the batch is the only symbol, `check_capacity` checks the array later.
            if len(shape) != 1 and symbols_of(*binding.shape) - {BATCH}:
                raise _shape_error(binding, shape, f"the array has rank {len(shape)}")
            continue
        for extent, dim in zip(shape, binding.shape, strict=True):
            name = symbol_of(dim)
            if name is not None and name != BATCH:
                values.setdefault(name, extent)
    return values


def check_capacity(binding: Binding, array_shape: tuple[int, ...], needed: tuple[int, ...]) -> None:
    """Check that an application's array can hold a binding of shape ``needed``.

    The array must have that shape, apart from axes of extent one, or be flat with at least as many
    elements. An array for a larger batch is accepted, too.

    Raises:
        BindingError: the array cannot hold the binding.
    """
    if array_shape == needed:
        return
    is_flat = len(array_shape) == 1 != len(needed) and array_shape[0] >= prod(needed)
    is_equal = _without_ones(array_shape) == _without_ones(needed)
    is_longer = (
        bool(array_shape and needed)
        and not isinstance(binding.shape[0], int)
        and array_shape[0] >= needed[0]
        and _without_ones(array_shape[1:]) == _without_ones(needed[1:])
    )
    if not (is_flat or is_equal or is_longer):
        raise BindingError(
            f"{binding.name}: the array has shape {list(array_shape)}, expected {list(needed)}"
        )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def find_plan(header: EngineHeader, values: dict[str, int]) -> int:
    """Return the first plan for these values, as an index; add maxima of data-dependent symbols.

    Raises:
        ContextError: the batch is larger than the engine's maximum.
        BindingError: no plan covers these values.
    """
    batch, maximum = values.get(BATCH), header.max_batch_size
    if batch is not None and maximum is not None and batch > maximum:
        raise _batch_too_large(batch, maximum)
    fitting = [
        number
        for number, plan in enumerate(header.plans)
        if all(low <= values.get(name, high) <= high for name, low, high in plan.symbols)
    ]
    if fitting:
        _add_maximum_values([header.plans[number] for number in fitting], values)
        return fitting[0]
    wanted = ", ".join(f"{name} = {value}" for name, value in values.items())
    raise BindingError(
        f"the engine has no plan for {wanted}; its plans are for "
        + "; or ".join(_describe_ranges(plan) for plan in header.plans)
    )


def _batch_too_large(batch: int, maximum: int) -> ContextError:
    larger = Argument("max_batch_size", batch)
    return ContextError(
        f"the batch size is {batch}, but the engine was built for at most {maximum}; "
        f"build it for a larger batch ({larger}, or a shape range if the model's shapes contain "
        "the batch), or run the batch in parts",
        arguments=[larger],
    )


def _add_maximum_values(fitting: Sequence[Plan], values: dict[str, int]) -> None:
    """Add the maximum of each symbol without a value: those of the first plan that fits."""
    data_dependent = fitting[0].data_dependent_symbols
    for name, _, high in fitting[0].symbols:
        ranges = [row[1:] for plan in fitting for row in plan.symbols if row[0] == name]
        least, maximum = min(low for low, _ in ranges), max(high for _, high in ranges)
        if name not in values and name not in data_dependent and least != maximum:
            raise BindingError(
                f"the extent {name}, from {least} to {maximum}, does not follow from an address or "
                f"a flat array; pass an array of full rank for an input that has the extent {name}"
            )
        values.setdefault(name, high)


def _describe_ranges(plan: Plan) -> str:
    ranges = [f"{name} {low} to {high}" for name, low, high in plan.symbols]
    return ", ".join(ranges) or "fixed shapes"
