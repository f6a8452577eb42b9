"""Convolutions and products of the sizes that networks have, by every tactic of the CPU backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt.backends.cpu import host_target, target_named
from smelt.engine import detect_host
from smelt.types import DType
from tests.support.conformance import (
    TrialRunner,
    check_reduced_precision,
    failures,
    single_job_backend,
)
from tests.support.dense_cases import DENSE_CASES
from tests.support.trials import trials_of_cases

if TYPE_CHECKING:
    from smelt.ir import Case


@pytest.mark.parametrize("case", DENSE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("storage", [DType.BFLOAT16, DType.FLOAT16], ids=lambda d: d.value)
def test_every_tactic_is_right_on_tensors_stored_narrow(case: Case, storage: DType) -> None:
    assert check_reduced_precision([case], storage)


@pytest.mark.parametrize("case", DENSE_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["native", pytest.param("x86-64-v3", marks=pytest.mark.slow)])
def test_every_tactic_is_right_at_the_sizes_of_networks(case: Case, name: str) -> None:
    backend = single_job_backend()
    target = host_target() if name == "native" else target_named(name)
    if not set(target.features) <= set(detect_host().features):
        pytest.skip(f"this processor does not run {name}")
    trials = list(trials_of_cases([case], backend, target))
    assert not all(trial.tactic.is_host_step for trial in trials)
    runner = TrialRunner(trials, backend, target)
    wrong = [
        reason
        for number, trial in enumerate(trials)
        if not trial.tactic.is_host_step
        for reason in failures(trial, runner, number)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_cases_reach_every_way_of_convolving() -> None:
    backend, target = single_job_backend(), host_target()
    found = {t.tactic.family for t in trials_of_cases(DENSE_CASES, backend, target)}
    assert {"conv", "depthwise", "deconv", "gemm", "pool", "winograd"} <= found
