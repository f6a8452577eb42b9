"""Generated: kernels for aarch64, verified and linked, and run where there is an emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.backends import CodeImage
from smelt.backends.cpu import CpuBackend
from smelt.engine import Launch, read_engine
from smelt.ir import Case
from smelt.ops import ALL_OPS, Conv, Op
from tests.support.guest import EMULATOR, TARGET, Guest
from tests.support.real_models import mnist, model_named, relative_error
from tests.support.trials import Trial, difference, sample, trials_of_cases

if TYPE_CHECKING:
    from pathlib import Path

_SAMPLED_CASES = 3
_SAMPLED_TRIALS = 5


@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_tactics_are_right_on_aarch64_too(op: type[Op], tmp_path: Path) -> None:
    _check(sample(op.cases(), _SAMPLED_CASES), tmp_path)


@pytest.mark.parametrize("size", [3, 5])
def test_winograd_is_right_on_aarch64_too(size: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    image, weights = ((1, 32, 13, 14), (32, 32, size, size))
    arrays = tuple(random.standard_normal(s).astype(np.float32) for s in (image, weights))
    op = Conv((size, size), pads=(size // 2,) * 4)
    assert "winograd" in _check([Case("large", op, arrays, constants=frozenset({1}))], tmp_path)


def _check(cases: list[Case], folder: Path) -> set[str]:
    """Compile and run some tactics of the cases; return the families that were chosen."""
    backend = CpuBackend(jobs=1)
    trials = sample(
        trials_of_cases(cases, backend, TARGET),
        _SAMPLED_TRIALS,
        key=lambda trial: trial.tactic.family,
    )
    native = [t for t in trials if all(isinstance(s, Launch) for s in t.plan.steps)]
    kernels = [s.kernel for t in native for s in t.plan.steps if isinstance(s, Launch)]
    image = backend.compile(kernels, TARGET)
    assert {kernel.symbol for kernel in kernels} <= dict(image.symbols).keys()
    if EMULATOR is None:
        pytest.skip("compiled, and not run: there is no qemu-aarch64")
    if native:
        _check_results(native, image, folder)
    return {trial.tactic.family for trial in native}


def _check_results(trials: list[Trial], image: CodeImage, folder: Path) -> None:
    guest = Guest(image, max(trial.plan.scratch_bytes for trial in trials))
    results = [[np.zeros_like(array) for array in trial.wanted] for trial in trials]
    for trial, outputs in zip(trials, results, strict=True):
        inputs = list(trial.arrays.values())
        guest.add(trial.plan, trial.weights.data(), trial.values, inputs, outputs)
    guest.run(folder)
    wrong = [
        f"{trial}: {reason}"
        for trial, outputs in zip(trials, results, strict=True)
        for mine, wanted in zip(outputs, trial.wanted, strict=True)
        if (reason := difference(mine, wanted, trial.case.tolerance))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.shared
@pytest.mark.skipif(EMULATOR is None, reason="there is no qemu-aarch64")
def test_lenet_on_aarch64_gives_what_it_gives_here(shared: Path, tmp_path: Path) -> None:
    model = model_named("lenet")
    built = model.build(shared, device="cpu:aarch64")
    file = read_engine(built.serialize())
    (plan,) = file.header.plans
    given = mnist(shared)[0][:1] / np.float32(256)
    (here,) = model.build(shared).create_context().run({built.inputs[0].name: given}).values()
    there = np.zeros_like(here)
    guest = Guest(CodeImage(bytes(file.code), file.header.symbols), plan.scratch_bytes)
    guest.add(plan, file.weights, {"batch": 1}, [given], [there])
    guest.run(tmp_path)
    assert relative_error(there, here) <= 1e-5
