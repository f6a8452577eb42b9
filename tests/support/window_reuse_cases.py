"""Convolutions for windows that slide over shared memory: of more places than one tile has."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.ir import Case
from smelt.ops import Clip, Conv, Fused, Stage
from tests.support.noise import noise
from tests.support.trials import narrow_trials, open_trials, trials_of_cases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.types import DType
    from tests.support.trials import Trial

WINDOW_REUSE: Final = "window_reuse"
"""The family; in requests, its cases."""
_HALF_TOLERANCE: Final = 3e-3


def _conv(name: str, op: Conv, image: tuple[int, ...], filters: int) -> Case:
    """A convolution with bias, limited on both sides."""
    weights = noise(filters, image[1], *op.kernel_shape, seed=1)
    bounds = (np.float32(-1), np.float32(40))
    arrays = (noise(*image), weights, noise(filters, seed=2), *map(np.array, bounds))
    fused = Fused(op, 3, (Stage(Clip(), (-1, 3, 4)),))
    return Case(name, fused, arrays, constants=frozenset({1, 2, 3, 4}))


def _half() -> Case:
    arrays = (noise(3, 64, 9, 8), noise(72, 64, 3, 3, seed=1))
    halves = tuple(array.astype(np.float16) for array in arrays)
    op = Conv((3, 3), pads=(1, 1, 1, 1))
    return Case("float16", op, halves, _HALF_TOLERANCE, frozenset({1}))


_CASES: Final = (
    _conv("three slices", Conv((3, 3), pads=(1, 1, 1, 1)), (2, 192, 9, 8), 64),
    _conv("odd channels", Conv((3, 3), pads=(1, 1, 1, 1)), (1, 72, 7, 11), 72),
    _conv("five by five", Conv((5, 5), pads=(2, 2, 2, 2)), (1, 32, 17, 15), 64),
    _conv("dilated", Conv((3, 3), dilations=(1, 2), pads=(1, 2, 1, 2)), (1, 128, 9, 17), 64),
    _conv("one side", Conv((1, 4), pads=(0, 0, 0, 2)), (2, 128, 9, 14), 64),
    _conv("no padding", Conv((3, 3)), (1, 64, 17, 15), 64),
    _conv("lines", Conv((7,), pads=(3, 3)), (2, 128, 61), 128),
    _conv("bodies", Conv((3, 3, 3), pads=(1,) * 6), (1, 32, 8, 12, 11), 64),
)


def window_reuse_trials(backend: CudaBackend, target: CudaTarget, storage: DType) -> list[Trial]:
    """Every case by such tactics, on a GPU so small that programs do several tiles."""
    small = replace(target, multiprocessors=1)
    every = chain(
        narrow_trials(_CASES, backend, small, storage),
        trials_of_cases([_half()], backend, small),
    )
    return _own(every)


def open_window_reuse_trials(backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """A case with a symbolic batch, and without any image, by the first of them."""
    return _own(open_trials(_half(), backend, replace(target, multiprocessors=1)))[:2]


def _own(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.tactic.family == WINDOW_REUSE]


def check_window_reuse(trials: Sequence[Trial]) -> None:
    """Fail where a case, or a size of tiles, is missing."""
    untried = {case.name for case in (*_CASES, _half())} - {trial.case.name for trial in trials}
    assert not untried, f"no window slides in {untried}"


def one_of_each(trials: Sequence[Trial]) -> list[Trial]:
    """For each case, and for each size of tiles, one of the trials."""
    found: dict[Any, Trial] = {}
    for trial in trials:
        options: dict[str, Any] = dict(trial.tactic.parameters)
        size = options["tile"][:2]
        if trial.case.name not in found or size not in found:
            found[trial.case.name] = found[size] = trial
    return list({id(trial): trial for trial in found.values()}.values())
