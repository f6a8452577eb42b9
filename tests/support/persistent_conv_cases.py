"""Convolutions for programs that hold their weights: of more places than one tile has."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from smelt.ir import Case
from smelt.ops import Add, Conv, ConvSum, Fused, Relu, Stage
from tests.support.noise import noise
from tests.support.trials import narrow_trials, open_trials, trials_of_cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.types import DType
    from tests.support.trials import Trial

PERSISTENT: Final = "persistent"
"""The family; in requests, its cases and those of stems like it."""
_DIRECT: Final = "stem_direct"
_HALF_TOLERANCE: Final = 2e-3


def conv_case(
    name: str, op: Conv, image: tuple[int, ...], filters: int, *, adds: bool = False
) -> Case:
    """A convolution with bias, rectified; ``adds`` a residual before that."""
    weights = noise(filters, image[1], *op.kernel_shape, seed=1)
    arrays = [noise(*image), weights, noise(filters, seed=2)]
    stages = [Stage(Relu(), (-1,))]
    if adds:
        (result,) = op.reference(*arrays)
        arrays.append(noise(*result.shape, seed=3))
        stages = [Stage(Add(), (-1, 3)), Stage(Relu(), (-2,))]
    return Case(name, Fused(op, 3, tuple(stages)), tuple(arrays), constants=frozenset({1, 2}))


def sum_case(
    name: str = "two images", channels: int = 64, others: int = 128, taps: int = 1
) -> Case:
    """Two convolutions that are added, of so many channels, the first of so many taps an axis."""
    arrays: tuple[NDArray[Any], ...] = (
        noise(2, channels, 9, 8),
        noise(64, channels, taps, taps, seed=1),
        noise(2, others, 18, 16, seed=2),
        noise(64, others, 1, 1, seed=3),
        noise(64, seed=4),
    )
    first = Conv((taps, taps), pads=(taps // 2,) * 4)
    op = Fused(ConvSum(first, Conv((1, 1), (2, 2))), 5, (Stage(Relu(), (-1,)),))
    return Case(name, op, arrays, constants=frozenset({1, 3, 4}))


def _half() -> Case:
    arrays = (noise(3, 64, 9, 8), noise(128, 64, 1, 1, seed=1))
    halves = tuple(array.astype(np.float16) for array in arrays)
    return Case("float16", Conv((1, 1)), halves, _HALF_TOLERANCE, frozenset({1}))


_STEMS: Final = (
    conv_case("three channels", Conv((7, 7), (2, 2), (3, 3, 3, 3)), (1, 3, 31, 29), 64),
    conv_case("vectors that are not there", Conv((3, 3), (2, 2), (1, 1, 1, 1)), (3, 3, 17, 19), 32),
    conv_case("one channel", Conv((5, 5), pads=(2, 2, 2, 2)), (1, 1, 13, 11), 16, adds=True),
    conv_case("one axis", Conv((9,), (2,), (4, 4)), (2, 3, 61), 64),
)
"""For programs that read pixels as tensor cores take them."""
_CASES: Final = (
    conv_case("a residual", Conv((1, 1)), (2, 64, 9, 8), 128, adds=True),
    conv_case("steps", Conv((1, 1), (2, 2)), (2, 384, 17, 18), 64),
    conv_case("windows", Conv((3, 3), pads=(1, 1, 1, 1)), (2, 24, 9, 8), 64),
    sum_case(),
)


def persistent_trials(backend: CudaBackend, target: CudaTarget, storage: DType) -> list[Trial]:
    """Every case by the tactic of most programs of each such family.

    The GPU is small enough for them to be offered.
    """
    small = replace(target, multiprocessors=1)
    every = chain(
        narrow_trials((*_CASES, *_STEMS), backend, small, storage),
        trials_of_cases([_half()], backend, small),
    )
    return _of_most_programs(every)


def open_persistent_trials(backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """A case with a symbolic batch, and without any image."""
    return _of_most_programs(open_trials(_half(), backend, replace(target, multiprocessors=1)))


def _of_most_programs(trials: Iterable[Trial]) -> list[Trial]:
    persistent = sorted(
        (t for t in trials if t.tactic.family in {PERSISTENT, _DIRECT}), key=_programs
    )
    found = {(t.case.name, bool(t.symbols), t.tactic.family): t for t in persistent}
    return list(found.values())


def check_persistent(trials: Sequence[Trial]) -> None:
    """Fail where a case is missing: not every GPU has room for all of them, but a Hopper has."""
    for family, cases in ((PERSISTENT, (*_CASES, _half())), (_DIRECT, _STEMS)):
        tried = {trial.case.name for trial in trials if trial.tactic.family == family}
        untried = {case.name for case in cases} - tried
        assert not untried, f"no program of {family} holds the weights of {untried}"
    assert max(map(_programs, trials)) > 1, "no two programs share their columns"


def _programs(trial: Trial) -> int:
    """How many programs share a stretch of columns."""
    return cast("int", dict(trial.tactic.parameters)["row_programs"])
