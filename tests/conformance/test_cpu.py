"""Generated: every op, case and tactic of the CPU backend gives what the op's reference gives."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt.backends.cpu import CpuBackend, target_named
from smelt.engine import detect_host
from smelt.ops import ALL_OPS, Op
from tests.support.conformance import Bench, failures
from tests.support.trials import bound_symbols, difference, graph_of, sample, trials_of_cases

_SAMPLED_CASES = 4
_SAMPLED_TRIALS = 6
_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


@_every_op
def test_every_tactic_for_every_case_gives_what_the_reference_gives(op: type[Op]) -> None:
    _check(op, "native")


@_every_op
def test_tactics_are_right_on_processors_with_avx2_too(op: type[Op]) -> None:
    _check(op, "x86-64-v3", sampled=True)


@pytest.mark.slow
@_every_op
def test_every_tactic_is_right_on_processors_with_avx2_too(op: type[Op]) -> None:
    _check(op, "x86-64-v3")


def _check(op: type[Op], name: str, *, sampled: bool = False) -> None:
    target = target_named(name)
    if not set(target.features) <= set(detect_host().features):
        pytest.skip(f"this processor does not run {name}")
    backend = CpuBackend(jobs=1)
    cases = list(op.cases())
    if sampled:
        cases = sample(cases, _SAMPLED_CASES)
    trials = list(trials_of_cases(cases, backend, target))
    if sampled:
        trials = sample(trials, _SAMPLED_TRIALS, key=lambda trial: trial.tactic.family)
    assert trials
    bench = Bench(trials, backend, target)
    wrong = [
        reason for number, trial in enumerate(trials) for reason in failures(trial, bench, number)
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
