"""The plan verifier: nothing that a context will run touches memory that it must not.

It trusts no compiler. For a plan of fixed shapes it evaluates every view once, for one with open
symbols at the corners of its box, and checks that

* every footprint, halo included, lies inside its buffer, and every buffer inside its space;
* weights and inputs are never written;
* a launch's written operand shares no byte with another operand, unless both are one window;
* what a step reads was not overwritten since, through another buffer, and launches that may run at
  the same time write nothing that another one touches (through another buffer: windows of one
  buffer are one tensor's, and their writers' business);
* kernels, layers, symbols and counts exist and are in range.

Between the corners a dimension may be larger or smaller than at any of them. So of a plan with open
symbols it is proven here, for all their values, that buffers in use at once share no byte; what
depends on the values is checked by each run, at its own (`RuntimeChecks`).

What a kernel does inside its operands' footprints is not seen here: that is why machine code must
be signed, or generated anew.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.engine._concrete_verifier import MAX_BYTES, MAX_EXTENT, verify_plan_at
from smelt.engine._lifetimes import check_lifetimes
from smelt.engine._runtime_checks import RuntimeChecks
from smelt.errors import EngineFormatError, UnboundSymbolError
from smelt.types import Limit, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine._plan import EngineHeader, Plan

_MAX_CORNER_SYMBOLS: Final = 4
"""Every corner is tried up to so many symbols; beyond, the smallest and the largest."""


def verify_plans(
    header: EngineHeader, *, weights_bytes: int, code_bytes: int, sources_bytes: int = 0
) -> tuple[RuntimeChecks | None, ...]:
    """Verify every plan of an engine, and what the plans share.

    Returns for each plan what a run must still check at its own values; None where shapes are
    fixed.

    Raises:
        EngineFormatError: naming the plan, the step and what is wrong with it.
    """
    for name, offset in header.symbols:
        if not 0 <= offset < code_bytes:
            raise EngineFormatError(f"the kernel {name!r} lies outside the engine's code")
    names = [binding.name for binding in header.bindings]
    if len(set(names)) != len(names):
        raise EngineFormatError("two bindings have the same name")
    if not header.plans:
        raise EngineFormatError("the engine has no plan")
    for kind, weights, most in (
        ("weight", header.weights, weights_bytes),
        ("source", header.sources, sources_bytes),
    ):
        for weight in weights:
            size = int(np.prod([*weight.shape, weight.dtype.size_bytes], dtype=object))
            if min((0, *weight.shape)) < 0 or not 0 <= weight.offset <= most - size:
                raise EngineFormatError(f"the {kind} {weight.name!r} lies outside its section")
    kernels = frozenset(name for name, _ in header.symbols)
    return tuple(
        verify_plan(header, plan, weights_bytes=weights_bytes, number=number, kernels=kernels)
        for number, plan in enumerate(header.plans)
    )


def verify_plan(
    header: EngineHeader,
    plan: Plan,
    *,
    weights_bytes: int,
    number: int = 0,
    kernels: frozenset[str] | None = None,
) -> RuntimeChecks | None:
    """Verify one plan; ``kernels`` are the symbols that its launches may name, None for any.

    Returns what a run must still check, at its own values; None where shapes are fixed.

    Raises:
        EngineFormatError: naming the plan, the step and what is wrong with it.
    """
    try:
        _check_symbols(header, plan)
        for values in _corners(plan):
            if all(guard.holds(values) for guard in plan.guards):
                verify_plan_at(header, plan, values, weights_bytes=weights_bytes, kernels=kernels)
        check_lifetimes(plan)
        return RuntimeChecks(header, plan) if plan.is_open else None
    except (EngineFormatError, UnboundSymbolError) as error:
        raise EngineFormatError(f"plan {number}: {error}") from error


def _check_symbols(header: EngineHeader, plan: Plan) -> None:
    names = [name for name, _, _ in plan.symbols]
    if len(set(names)) != len(names):
        raise EngineFormatError("a symbol is declared twice")
    for name, low, high in plan.symbols:
        if not 0 <= low <= high <= MAX_EXTENT:
            detail = Limit.MAX_EXTENT.excess(f"{low} to {high}")
            raise EngineFormatError(f"the range of the symbol {name!r} is invalid: {detail}")
    sizes = f"{plan.arena_bytes:,} and {plan.scratch_bytes:,}"
    if not 0 <= plan.arena_bytes <= MAX_BYTES or not 0 <= plan.scratch_bytes <= MAX_BYTES:
        raise EngineFormatError(
            f"an arena and scratch memory of {Limit.MAX_PLAN_BYTES.excess(sizes)}; build for "
            "smaller shapes or a smaller batch"
        )
    _check_outputs(header, plan, frozenset(names))
    given = symbols_of(*(d for b in header.bindings if b.is_input for d in b.shape))
    if twice := given & plan.decided.keys():
        raise EngineFormatError(
            f"the symbol {min(twice)!r} is defined both by an input and by a step"
        )
    for guard in plan.guards:
        if unknown := guard.symbols - set(names):
            raise EngineFormatError(f"a guard uses the undefined symbol {min(unknown)!r}")


def _check_outputs(header: EngineHeader, plan: Plan, names: frozenset[str]) -> None:
    ranks = [len(binding.shape) for binding in header.bindings if not binding.is_input]
    if plan.outputs and [len(shape) for shape in plan.outputs] != ranks:
        raise EngineFormatError("its outputs are not those of the bindings")
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
