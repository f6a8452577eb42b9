"""Random ways to lay the same operands in memory: targets, gaps, margins, symbols, threads."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from smelt.backends import NodeRefusedError
from smelt.backends.cpu import host_target, target_named
from tests.support.cpu_families import assert_tactics_agree, make_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from smelt.backends import Family, Tactic
    from smelt.backends.cpu import CpuTarget
    from smelt.ir import Op


def _targets() -> list[CpuTarget]:
    """Registers of 256 bits, and of 512 where this machine has them."""
    host = host_target()
    if host.architecture != "x86_64":
        return [host]
    return [target_named("x86-64-v3"), *([host] if host.vector_bits == 512 else [])]


TARGETS = _targets()
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)

few_examples = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
"""Every example compiles kernels."""

extents = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33, 40])


def supported_cases(family: Family[CpuTarget], kinds: Sequence[type[Op]]) -> list[Any]:
    """The ops' own cases that the family does not refuse."""
    found: list[Any] = []
    for kind in kinds:
        for case in kind.cases():
            node = make_node(case.op, case.inputs, case.constants)
            with suppress(NodeRefusedError):
                if list(family.tactics(node, host_target())):
                    found.append(pytest.param(case, id=f"{kind.name}-{case.name}"))
    assert found
    return found


def assert_agrees_somehow(
    family: Family[CpuTarget],
    op: Op,
    arrays: Sequence[np.ndarray[Any, Any] | None],
    data: st.DataObject,
    constants: frozenset[int] = frozenset(),
    *,
    open_axes: Sequence[tuple[int, int]] = (),
    tolerance: float = 2e-5,
) -> list[Tactic]:
    """Every tactic agrees on one random way of laying the operands.

    ``open_axes`` are the (input, axis) that may be symbols, all with names of their own.
    """
    draw = data.draw
    chosen: set[tuple[int, int]] = set()
    if open_axes:
        chosen = draw(st.sets(st.sampled_from(list(open_axes))))
    symbols = {place: f"s{number}" for number, place in enumerate(sorted(chosen))}
    return assert_tactics_agree(
        family,
        op,
        arrays,
        constants,
        symbols=symbols or None,
        target=draw(st.sampled_from(TARGETS)),
        gap=draw(st.sampled_from([0, 0, 1, 5])),
        margin=draw(st.sampled_from([0, 0, 1])),
        at_end=draw(st.booleans()),
        workers=draw(st.sampled_from([1, 1, 3])),
        tolerance=tolerance,
    )
