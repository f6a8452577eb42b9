"""Channels that are equal in the network are equal, bit for bit, wherever kernels put them.

Classes of the same weights must stay of the same probability: a softmax makes a great difference of
the least one between large numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

from smelt.backends.cpu import host_target
from smelt.ir import Case
from smelt.ops import Conv, ConvTranspose, Gemm, MatMul, Op
from tests.support.conformance import TrialRunner, single_job_backend
from tests.support.trials import trials_of_cases


def _filters(count: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    one = np.random.default_rng(1).random(shape).astype(np.float32)
    return np.ascontiguousarray(np.broadcast_to(one, (count, *shape)))


def _conv(size: int, group: int = 1) -> Conv:
    pads = (size // 2,) * 4
    return Conv(kernel_shape=(size, size), strides=(1, 1), dilations=(1, 1), pads=pads, group=group)


_SPREAD = ConvTranspose(
    kernel_shape=(2, 2), strides=(2, 2), dilations=(1, 1), pads=(0, 0, 0, 0), group=1
)


@pytest.mark.parametrize("count", [40, 100, 1000])
@pytest.mark.parametrize(
    "kind", ["gemm", "mat_mul", "conv 1x1", "conv 3x3", "conv 5x5", "conv_transpose"]
)
def test_equal_filters_give_equal_channels_by_every_tactic(kind: str, count: int) -> None:
    op, weights, shape = _example(kind, min(count, 137) if " " in kind else count)
    x = (np.random.default_rng(0).random(shape) * 1000).astype(np.float32)
    case = Case(kind, op, (x, weights), tolerance=1e-4, constants=frozenset({1}))
    backend, target = single_job_backend(), host_target()
    every = trials_of_cases([case], backend, target)
    trials = [t for t in every if not t.symbols and not t.tactic.is_host_step]
    runner = TrialRunner(trials, backend, target)
    for trial in trials:
        with runner.engine(trial).create_context(threads=1) as context:
            (made,) = context.run(trial.arrays).values()
        channels = made.T if made.ndim == 2 else made[0]
        assert (channels == channels[:1]).all(), str(trial)


def _example(
    kind: str, count: int
) -> tuple[Op, np.ndarray[tuple[int, ...], np.dtype[np.float32]], tuple[int, ...]]:
    if kind == "gemm":
        return Gemm(trans_b=True), _filters(count, 333), (1, 333)
    if kind == "mat_mul":
        return MatMul(), np.ascontiguousarray(_filters(count, 333).T), (3, 333)
    if kind == "conv_transpose":
        weights = np.ascontiguousarray(_filters(count, 20, 2, 2).transpose(1, 0, 2, 3))
        return _SPREAD, weights, (1, 20, 5, 5)
    size = int(kind[-1])
    return _conv(size), _filters(count, 40, size, size), (1, 40, 9, 11)
