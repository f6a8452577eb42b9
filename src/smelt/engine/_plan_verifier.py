"""The plan verifier: checks that the steps of a plan access only memory that they may access.

It does not trust the compiler. For a plan of fixed shapes it evaluates every view once, for a plan
with symbols at the corners of their ranges. It checks that

* every footprint, including the halo, lies inside its buffer, and every buffer inside its space;
* weights and inputs are never written;
* a launch's written operand shares no byte with another operand, unless both are the same view;
* data that a step reads were not overwritten through another buffer, and concurrent launches write
  nothing that another one accesses through another buffer (views of one buffer belong to one
  tensor, whose writers are responsible for them);
* kernels, layers, symbols and counts exist and are in range.

Between the corners, a dimension may be larger or smaller than at any of them. For plans with
symbols, the live ranges of buffers are therefore proven for all values here, while conditions that
depend on the values are checked by each run (`RuntimeChecks`).

The verifier does not see what a kernel does inside its operands' footprints. This is why machine
code must be signed or generated again.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.engine._concrete_verifier import MAX_BYTES, MAX_EXTENT, verify_plan_at
from smelt.engine._lifetime_verifier import check_lifetimes
from smelt.engine._runtime_checks import RuntimeChecks
from smelt.errors import EngineFormatError, UnboundSymbolError
from smelt.types import Limit, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine._plan import EngineHeader, Plan

_MAX_CORNER_SYMBOLS: Final = 4
"""Number of symbols up to which all corners are evaluated; beyond, only all minima and maxima."""


def verify_plans(
    header: EngineHeader, *, weights_bytes: int, code_bytes: int, network_arrays_bytes: int = 0
) -> tuple[RuntimeChecks | None, ...]:
    """Verify every plan of an engine, its symbols and its weights.

    Returns the runtime checks of each plan; None for a plan of fixed shapes.

    Raises:
        EngineFormatError: a check fails; the message names the plan and the step.
    """
    for name, offset in header.symbols:
        if not 0 <= offset < code_bytes:
            raise EngineFormatError(f"the kernel {name!r} lies outside the engine's code")
    names = [binding.name for binding in header.bindings]
    if len(set(names)) != len(names):
        raise EngineFormatError("two bindings have the same name")
    if not header.plans:
        raise EngineFormatError("the engine has no plan")
    verify_weights(header, weights_bytes=weights_bytes, network_arrays_bytes=network_arrays_bytes)
    kernels = frozenset(name for name, _ in header.symbols)
    return tuple(
        verify_plan(header, plan, weights_bytes=weights_bytes, plan_index=number, kernels=kernels)
        for number, plan in enumerate(header.plans)
    )


def verify_weights(header: EngineHeader, *, weights_bytes: int, network_arrays_bytes: int) -> None:
    """Verify that the weights and the arrays of the embedded network are in their sections.

    Raises:
        EngineFormatError: an array lies outside.
    """
    for kind, weights, section_bytes in (
        ("weight", header.weights, weights_bytes),
        ("network array", header.network_arrays, network_arrays_bytes),
    ):
        for weight in weights:
            size = int(np.prod([*weight.shape, weight.dtype.size_bytes], dtype=object))
            if min((0, *weight.shape)) < 0 or not 0 <= weight.offset <= section_bytes - size:
                raise EngineFormatError(f"the {kind} {weight.name!r} lies outside its section")


def verify_plan(
    header: EngineHeader,
    plan: Plan,
    *,
    weights_bytes: int,
    plan_index: int = 0,
    kernels: frozenset[str] | None = None,
) -> RuntimeChecks | None:
    """Verify one plan; ``kernels`` are the symbols that its launches may name, None for any.

    Returns the runtime checks of the plan; None for a plan of fixed shapes.

    Raises:
        EngineFormatError: a check fails; the message names the plan and the step.
    """
    try:
        _check_symbols(header, plan)
        for values in _corners(plan):
            if all(guard.holds(values) for guard in plan.guards):
                verify_plan_at(header, plan, values, weights_bytes=weights_bytes, kernels=kernels)
        check_lifetimes(plan)
        return RuntimeChecks(header, plan) if plan.is_open else None
    except (EngineFormatError, UnboundSymbolError) as error:
        raise EngineFormatError(f"plan {plan_index}: {error}") from error


def _check_symbols(header: EngineHeader, plan: Plan) -> None:
    names = [name for name, _, _ in plan.symbols]
    if len(set(names)) != len(names):
        raise EngineFormatError("a symbol is declared twice")
    for name, low, high in plan.symbols:
        if not 0 <= low <= high <= MAX_EXTENT:
            raise EngineFormatError(
                f"the range of the symbol {name!r} is {low} to {high}; it must be increasing and "
                f"within 0 to {MAX_EXTENT:,} ({Limit.MAX_EXTENT.name})"
            )
    sizes = f"{plan.arena_bytes:,} and {plan.scratch_bytes:,}"
    if not 0 <= plan.arena_bytes <= MAX_BYTES or not 0 <= plan.scratch_bytes <= MAX_BYTES:
        raise EngineFormatError(
            f"the arena and the scratch memory have {Limit.MAX_PLAN_BYTES.excess(sizes)}; build "
            "for smaller shapes or a smaller batch"
        )
    _check_outputs(header, plan, frozenset(names))
    input_symbols = symbols_of(*(d for b in header.bindings if b.is_input for d in b.shape))
    if undefined := plan.data_dependent_symbols.keys() - set(names):
        raise EngineFormatError(f"a step determines the undefined symbol {min(undefined)!r}")
    if duplicates := input_symbols & plan.data_dependent_symbols.keys():
        raise EngineFormatError(
            f"the symbol {min(duplicates)!r} is defined both by an input and by a step"
        )
    for guard in plan.guards:
        if unknown := guard.symbols - set(names):
            raise EngineFormatError(f"a guard uses the undefined symbol {min(unknown)!r}")


def _check_outputs(header: EngineHeader, plan: Plan, names: frozenset[str]) -> None:
    ranks = [len(binding.shape) for binding in header.bindings if not binding.is_input]
    if plan.outputs and [len(shape) for shape in plan.outputs] != ranks:
        raise EngineFormatError("the ranks of the plan's outputs differ from those of the bindings")
    for shape in plan.shapes(header.bindings):
        if unknown := symbols_of(*shape) - names:
            raise EngineFormatError(f"a binding uses the undefined symbol {min(unknown)!r}")


def _corners(plan: Plan) -> Iterator[dict[str, int]]:
    names = [name for name, _, _ in plan.symbols]
    ranges = [(high, low) if low != high else (high,) for _, low, high in plan.symbols]
    if len(names) > _MAX_CORNER_SYMBOLS:
        yield {name: high for name, _, high in plan.symbols}
        yield {name: low for name, low, _ in plan.symbols}
        return
    for values in itertools.product(*ranges):
        yield dict(zip(names, values, strict=True))
