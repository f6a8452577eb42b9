"""Products for programs that have their weights before the launch before has ended."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.ir import Case
from smelt.ops import Add, Conv, Fused, Gelu, Gemm, MatMul, Stage
from smelt.types import DType
from tests.support.persistent_conv_cases import conv_case, sum_case
from tests.support.trials import covering, narrow_trials, open_trials

if TYPE_CHECKING:
    from smelt.backends.cuda import CudaBackend, CudaTarget
    from smelt.ir import Op
    from tests.support.trials import Trial

PREFETCH: Final = "prefetch"
"""The family; in requests, its cases."""
_HALF_TOLERANCE: Final = 2e-3


def _case(name: str, op: Op, weights: set[int], *shapes: tuple[int, ...]) -> Case:
    random = np.random.default_rng(0)
    arrays = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return Case(name, op, tuple(arrays), constants=frozenset(weights))


def _half() -> Case:
    """In float16 by itself."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((3, 7, 32)), random.standard_normal((32, 40))
    arrays = (x.astype(np.float16), w.astype(np.float16))
    return Case("float16", MatMul(), arrays, _HALF_TOLERANCE, frozenset({1}))


_STAGES: Final = (Stage(Add(), (-1, 2)), Stage(Add(), (-2, 3)), Stage(Gelu(), (-3,)))
_CASES: Final = (
    _case("rows", Fused(MatMul(), 2, _STAGES), {1, 2}, (2, 9, 96), (96, 50), (50,), (2, 9, 50)),
    _case("factors", Gemm(alpha=0.5, beta=2.0, trans_b=True), {1}, (37, 256), (50, 256), (50,)),
    _case("turned", Gemm(trans_a=True), {1}, (64, 21), (64, 128)),
    conv_case("pixels", Conv((1, 1), (2, 2)), (2, 768, 9, 7), 72, adds=True),
    conv_case("windows", Conv((3, 3), (2, 2), (1, 1, 1, 1)), (2, 64, 9, 8), 40),
    conv_case("windows of two steps", Conv((3, 3), pads=(1, 1, 1, 1)), (1, 256, 5, 6), 48),
    sum_case(),
    sum_case("two deep images", 256, 512),
    sum_case("two images, one of windows", 96, 32, taps=3),
)


def prefetch_trials(backend: CudaBackend, target: CudaTarget) -> list[Trial]:
    """Every case by so many tactics that all choices meet, and one with a symbolic batch."""
    trials = [
        trial
        for trial in narrow_trials(_CASES, backend, target, DType.FLOAT16)
        if trial.tactic.family == PREFETCH
    ]
    untried = {case.name for case in _CASES} - {trial.case.name for trial in trials}
    assert not (untried and target.uses_pdl), f"no program has the weights of {untried} ahead"
    opened = open_trials(_half(), backend, target)
    return list(chain(covering(trials), (t for t in opened if t.tactic.family == PREFETCH)))
