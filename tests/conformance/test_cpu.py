"""Generated: every op, case and tactic of the CPU backend gives what the op's reference gives."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt.backends.cpu import CpuBackend, CpuTarget, host_target, target_named
from smelt.engine import detect_host
from smelt.ops import ALL_OPS, Fused, FusedPair, Op
from tests.support.conformance import TrialRunner, failures, single_job_backend
from tests.support.trials import (
    Trial,
    bound_symbols,
    covering,
    difference,
    graph_of,
    sample,
    trials_of_cases,
)

_OF_OTHERS = (FusedPair, Fused)
"""All tactics of what they are made of are tried with that: pairs of their traits do here."""
_SAMPLED_CASES = 4
_SAMPLED_TRIALS = 6
_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


@_every_op
def test_every_tactic_for_every_case_gives_what_the_reference_gives(
    op: type[Op], *, every_trial: bool
) -> None:
    backend, target = single_job_backend(), host_target()
    trials = list(trials_of_cases(op.cases(), backend, target))
    assert trials
    if op in _OF_OTHERS and not every_trial:
        trials = covering(trials)
    _run(backend, target, trials)


@_every_op
def test_tactics_are_right_on_processors_with_avx2_too(op: type[Op]) -> None:
    _run(*_avx2(), _a_few(op, *_avx2()))


@_every_op
def test_tactics_are_right_on_the_oldest_processors_too(op: type[Op]) -> None:
    oldest = _named("x86-64")
    _run(*oldest, _a_few(op, *oldest))


@pytest.mark.slow
@_every_op
def test_other_tactics_are_right_on_processors_with_avx2_too(
    op: type[Op], *, every_trial: bool
) -> None:
    if op in _OF_OTHERS and not every_trial:
        pytest.skip("a few of what is composed do: its parts are tried by themselves")
    trials = list(trials_of_cases(op.cases(), *_avx2()))
    done = set(map(str, _a_few(op, *_avx2())))
    chosen = trials if every_trial else covering(trials)
    if others := [trial for trial in chosen if str(trial) not in done]:
        _run(*_avx2(), others)


def _avx2() -> tuple[CpuBackend, CpuTarget]:
    return _named("x86-64-v3")


def _named(name: str) -> tuple[CpuBackend, CpuTarget]:
    target = target_named(name)
    if not set(target.features) <= set(detect_host().features):
        pytest.skip(f"this processor does not run {target.name}")
    return single_job_backend(), target


def _a_few(op: type[Op], backend: CpuBackend, target: CpuTarget) -> list[Trial]:
    cases = sample(op.cases(), _SAMPLED_CASES)
    trials = trials_of_cases(cases, backend, target)
    return sample(trials, _SAMPLED_TRIALS, key=lambda trial: trial.tactic.family)


def _run(backend: CpuBackend, target: CpuTarget, trials: list[Trial]) -> None:
    runner = TrialRunner(trials, backend, target)
    wrong = [
        reason for number, trial in enumerate(trials) for reason in failures(trial, runner, number)
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
