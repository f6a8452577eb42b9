"""Chains by the families that compute both ops in one launch."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from smelt.ir import Case
from smelt.ops import Conv, Fused, FusedPair, MaxPool, Relu, Stage
from smelt.types import DType
from tests.support.trials import covering, narrow_trials, open_trials

if TYPE_CHECKING:
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from tests.support.trials import Trial

FUSED_PAIR: Final = "chained"
"""In requests: these families' cases."""
_FAMILY: Final = "fused_pair"
_POOLED: Final = "fused_stem_pool"
_TOLERANCE: Final = 2e-3


def _pooled_half() -> Case:
    """A stem in float16 by itself, pooled; more places than a tile has."""
    random = np.random.default_rng(0)
    arrays = (
        random.standard_normal(shape).astype(np.float16)
        for shape in ((3, 3, 37, 41), (16, 3, 3, 3))
    )
    op = FusedPair(Conv((3, 3), (2, 2)), 2, MaxPool((3, 3), (2, 2)))
    return Case("pooled float16", op, tuple(arrays), _TOLERANCE, frozenset({1}))


def _half() -> Case:
    """In float16 by itself, what is between kept, no bias first."""
    shapes = ((3, 40, 5, 6), (72, 40, 1, 1), (24, 72, 1, 1), (24,))
    random = np.random.default_rng(0)
    arrays = (random.standard_normal(shape).astype(np.float16) for shape in shapes)
    first = Fused(Conv((1, 1)), 2, (Stage(Relu(), (-1,)),))
    op = FusedPair(first, 2, Conv((1, 1)), returns_intermediate=True)
    return Case("float16", op, tuple(arrays), _TOLERANCE, frozenset({1, 2, 3}))


def fused_pair_trials(backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """Every case of single pixels by so many tactics that all their choices meet, and open ones."""
    cases = [case for case in FusedPair.cases() if case.name.endswith(("reduced", "kept"))]
    trials = [
        trial
        for trial in narrow_trials(cases, backend, target, DType.FLOAT16)
        if trial.tactic.family == _FAMILY
    ]
    untried = {case.name for case in cases} - {trial.case.name for trial in trials}
    assert not untried, f"no launch computes {untried}"
    for name in ("second_tile", "num_stages", "tile"):
        values = {dict(trial.tactic.parameters)[name] for trial in trials}
        assert len(values) > 1, f"all chains have the {name} {values}"
    # So small a GPU that programs have several tiles.
    small = replace(target, multiprocessors=1)
    walks = [t for t in narrow_trials(cases, backend, small, DType.FLOAT16) if _programs(t)]
    assert {_programs(trial) for trial in walks} & {1, 2}, "no programs walk"
    opened = [t for t in open_trials(_half(), backend, target) if t.tactic.family == _FAMILY]
    trials = [trial for trial in trials if not _programs(trial)]
    return [*covering(trials), *walks, *opened[:2], *opened[-2:], *_pooled(backend, target)]


def _pooled(backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """Stems and poolings by all tactics, on GPUs of two sizes: so programs do one row, and more."""
    cases = [case for case in FusedPair.cases() if case.name.startswith("pooled")]
    both = [replace(target, multiprocessors=1), target]
    narrow = (narrow_trials(cases, backend, gpu, DType.FLOAT16) for gpu in both)
    opened = (open_trials(_pooled_half(), backend, gpu) for gpu in both)
    trials = [t for t in chain(*narrow, *opened) if t.tactic.family == _POOLED]
    untried = {case.name for case in cases} - {trial.case.name for trial in trials}
    assert not untried, f"no launch computes {untried}"
    heights = {dict(trial.tactic.parameters)["rows_per_program"] for trial in trials}
    assert len(heights) > 1, f"all strips are {heights} rows high"
    return covering(trials)


def _programs(trial: Trial) -> int:
    """How many programs walk down the rows; 0 where each does one tile."""
    return cast("int", dict(trial.tactic.parameters).get("row_programs", 0))
