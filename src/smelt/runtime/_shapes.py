"""Which plan runs, and with which symbol values: found from the shapes of the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.engine import HostCall
from smelt.errors import BindingError, ContextError, UnboundSymbolError
from smelt.types import Symbol, SymbolicDim, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.engine import Binding, EngineHeader, Plan
    from smelt.types import Dim

BATCH: Final = "batch"
"""The symbol of the implicit batch."""


def values_from_shapes(
    bindings: Sequence[Binding], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """Return the symbol values under which the inputs have these shapes.

    Raises:
        BindingError: there are none; the message names the input and both shapes.
    """
    values: dict[str, int] = {}
    owners: dict[str, str] = {}
    for binding, shape in zip(bindings, shapes, strict=True):
        if len(shape) != len(binding.shape):
            raise _misfit(binding, shape, f"it has {len(shape)} axes")
        for extent, dim in zip(shape, binding.shape, strict=True):
            name = _symbol_name(dim)
            if name is None:
                continue
            if values.setdefault(name, extent) != extent:
                raise _misfit(binding, shape, f"{owners[name]} has {name} = {values[name]}")
            owners.setdefault(name, binding.name)
    for binding, shape in zip(bindings, shapes, strict=True):
        for axis, (extent, dim) in enumerate(zip(shape, binding.shape, strict=True)):
            if _evaluate(dim, values, binding) != extent:
                raise _misfit(binding, shape, f"axis {axis} must be {dim}")
    return values


def _symbol_name(dim: Dim) -> str | None:
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def _evaluate(dim: Dim, values: Mapping[str, int], binding: Binding) -> int:
    try:
        return evaluate_dim(dim, values)
    except UnboundSymbolError as error:
        raise BindingError(f"{binding.name}: {error}") from error


def _misfit(binding: Binding, shape: tuple[int, ...], why: str) -> BindingError:
    wanted = ", ".join(map(str, binding.shape))
    return BindingError(f"{binding.name}: the array's shape {list(shape)} is not [{wanted}]: {why}")


def find_plan(header: EngineHeader, values: dict[str, int]) -> int:
    """Return the number of the first plan for these values, and add those that a run decides.

    Raises:
        ContextError: the batch is larger than the engine's maximum.
        BindingError: no plan is for these values.
    """
    batch, most = values.get(BATCH), header.max_batch_size
    if batch is not None and most is not None and batch > most:
        raise ContextError(
            f"the batch has {batch} and the engine was built for at most {most}; "
            f"build it with max_batch_size={batch}, or run it in parts"
        )
    for number, plan in enumerate(header.plans):
        if all(low <= values.get(name, high) <= high for name, low, high in plan.symbols):
            _complete(plan, values)
            return number
    raise BindingError(
        f"the engine has no plan for {_text(values)}; it has: "
        + "; or ".join(_ranges(plan) for plan in header.plans)
    )


def _complete(plan: Plan, values: dict[str, int]) -> None:
    """Give symbols that a run itself decides their largest values."""
    decided = {
        name for step in plan.steps if isinstance(step, HostCall) for name, _, _ in step.sizes
    }
    for name, low, high in plan.symbols:
        if name not in values and name not in decided and low != high:
            raise BindingError(
                f"{name} has no value; it is from {low} to {high}, and an address has no shape: "
                "pass an array for the input that has it"
            )
        values.setdefault(name, high)


def _ranges(plan: Plan) -> str:
    return (
        ", ".join(f"{name} {low} to {high}" for name, low, high in plan.symbols) or "fixed shapes"
    )


def _text(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
