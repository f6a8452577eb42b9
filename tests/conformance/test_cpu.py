"""Generated: every op, case and tactic of the CPU backend gives what the op's reference gives."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt.backends.cpu import CpuBackend, host_target, target_named
from smelt.engine import detect_host
from smelt.ops import ALL_OPS, Op
from tests.support.conformance import (
    Bench,
    bound_symbols,
    difference,
    failures,
    graph_of,
    trials_of,
)

_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


@_every_op
def test_every_tactic_for_every_case_gives_what_the_reference_gives(op: type[Op]) -> None:
    _check(op, "native")


@pytest.mark.slow
@_every_op
def test_every_tactic_is_right_on_processors_with_avx2_too(op: type[Op]) -> None:
    if not set(target_named("x86-64-v3").features) <= set(detect_host().features):
        pytest.skip("this processor does not run x86-64-v3")
    _check(op, "x86-64-v3")


def _check(op: type[Op], name: str) -> None:
    backend = CpuBackend(jobs=1)
    target = host_target() if name == "native" else target_named(name)
    trials = list(trials_of(op, backend, target))
    assert trials
    bench = Bench(trials, backend, target)
    wrong = [
        reason
        for number, trial in enumerate(trials)
        for reason in failures(trial, bench, at_end=number % 2 == 0)
    ]
    assert not wrong, "\n".join(wrong)


@_every_op
def test_every_case_builds_and_runs_as_a_network_of_its_own(op: type[Op]) -> None:
    for case in op.cases():
        with np.errstate(all="ignore"):
            wanted = case.op.reference(*case.inputs)
        graph = graph_of(case)
        graph.symbol_bounds |= {name: high for name, _, high in bound_symbols(graph, wanted)}
        names = [value.name for value in graph.outputs]
        arrays = {v.name: case.inputs[int(v.name[1:])] for v in graph.inputs}
        with smelt.build(graph, tune="none") as engine, engine.create_context() as context:
            made = context.run(arrays)
        for output, array in zip(names, wanted, strict=True):
            assert difference(made[output], array, case.tolerance) is None, (case.name, output)
