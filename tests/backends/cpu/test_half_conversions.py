"""float16 and bfloat16 on targets that have no instruction for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cpu import host_target
from smelt.ir import Case
from smelt.network import NetworkDefinition
from smelt.types import DType
from tests.support.trials import graph_of

TARGETS = (
    ("x86-64", "x86-64-v2", "x86-64-v3") if host_target().architecture == "x86_64" else ("native",)
)
every_old_target = pytest.mark.parametrize("target", TARGETS)
every_half = pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16])

Array = np.ndarray[Any, Any]


@every_old_target
@every_half
def test_every_half_widens_exactly(half: DType, target: str) -> None:
    stored = np.arange(1 << 16, dtype=np.uint16).view(half.numpy)
    _assert_same(_cast(stored, DType.FLOAT32, target), stored.astype(np.float32))


@every_old_target
@every_half
def test_floats_round_to_the_nearest_half_and_ties_to_even(half: DType, target: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(half.numpy).astype(np.float32)
    bits = every.view(np.uint32)[np.isfinite(every)]
    # Between two neighbours: the tie, which is exact in float32, and what is just beside it.
    tie = 1 << (12 if half is DType.FLOAT16 else 15)
    ties = np.concatenate([bits + np.uint32(tie + beside) for beside in (-1, 0, 1)])
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    tiny = np.arange(1 << 12, dtype=np.float32) * np.float32(2**-26)  # ties of denormal halves
    floats = np.concatenate([ties.view(np.float32), random.view(np.float32), tiny, -tiny])
    edges = np.array([np.nan, -np.nan, np.inf, -np.inf, 65519.996, 65520, 3.4e38], np.float32)
    floats = np.concatenate([floats, edges])
    with np.errstate(all="ignore"):
        wanted = floats.astype(half.numpy)
    _assert_same(_cast(floats, half, target), wanted)


def _cast(array: Array, to: DType, target: str) -> Array:
    graph = graph_of(Case("halves", ops.Cast(to), (array,)))
    engine = smelt.build(NetworkDefinition.from_graph(graph), device=f"cpu:{target}")
    return next(iter(engine.run({"x0": array}).values()))


def _assert_same(mine: Array, wanted: Array) -> None:
    """Equal bit for bit; a NaN is one of the same sign."""
    number = ~np.isnan(wanted.astype(np.float32))
    unsigned = f"u{wanted.itemsize}"
    np.testing.assert_array_equal(mine.view(unsigned)[number], wanted.view(unsigned)[number])
    rest = mine.astype(np.float32)[~number]
    assert np.isnan(rest).all()
    np.testing.assert_array_equal(np.signbit(rest), np.signbit(wanted.astype(np.float32)[~number]))
