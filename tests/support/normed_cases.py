"""Normalisations and products that read them, by the family that does both in one launch."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.ir import Case
from smelt.ops import (
    Add,
    Chain,
    Fused,
    Gelu,
    Gemm,
    LayerNormalization,
    MatMul,
    RMSNormalization,
    Stage,
)
from smelt.types import DType
from tests.support.trials import covering, narrow_trials, open_trials

if TYPE_CHECKING:
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.ir import Op
    from tests.support.trials import Trial

NORMED: Final = "normed"
"""The family; in requests, its cases."""
_HALF_TOLERANCE: Final = 2e-3


def _case(
    name: str, op: Op, weights: set[int], *shapes: tuple[int, ...], half: bool = False
) -> Case:
    random = np.random.default_rng(0)
    kind = np.float16 if half else np.float32
    arrays = (random.standard_normal(shape).astype(kind) for shape in shapes)
    tolerance = _HALF_TOLERANCE if half else 1e-4
    return Case(name, op, tuple(arrays), tolerance, constants=frozenset(weights))


_NORM: Final = LayerNormalization()
_STAGES: Final = (Stage(Add(), (-1, 2)), Stage(Add(), (-2, 3)), Stage(Gelu(), (-3,)))
_CASES: Final = (
    _case(
        "kept",
        Chain(_NORM, 3, Fused(MatMul(), 2, _STAGES), keeps=True),
        {1, 2, 3, 4},
        (2, 9, 96), (96,), (96,), (96, 50), (50,), (2, 9, 50),
    ),
    _case(
        "between",
        Chain(_NORM, 3, Gemm(alpha=0.5, beta=2.0, trans_b=True)),
        {2, 3},
        (37, 256), (256,), (256,), (50, 256), (50,),
    ),
    _case(
        "roots",
        Chain(RMSNormalization(), 2, MatMul(), keeps=True),
        {1, 2},
        (70, 384), (384,), (384, 40),
    ),
)  # fmt: skip
"""Of the second, what scales the rows is no weight."""


def normed_trials(backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """Every case by so many tactics that all choices meet, and one with a symbolic batch."""
    trials = [
        trial
        for trial in narrow_trials(_CASES, backend, target, DType.FLOAT16)
        if trial.tactic.family == NORMED
    ]
    untried = {case.name for case in _CASES} - {trial.case.name for trial in trials}
    assert not (untried and target.starts_early), f"no launch computes {untried}"
    op = Chain(_NORM, 3, MatMul(), keeps=True)
    half = _case("float16", op, {1, 2, 3}, (3, 7, 32), (32,), (32,), (32, 40), half=True)
    opened = open_trials(half, backend, target)
    return list(chain(covering(trials), (t for t in opened if t.tactic.family == NORMED)))
