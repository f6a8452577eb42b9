"""Seeded random arrays and corner values for the test cases of ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.ir import Array, Case, Op

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from smelt.types import DType


def floats(
    *shape: int, dtype: DTypeLike = np.float32, low: float = -1.0, high: float = 1.0, seed: int = 0
) -> Array:
    """Return uniformly distributed floating-point numbers from ``low`` to ``high``."""
    kind: np.dtype[Any] = np.dtype(dtype)
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape)).astype(kind)


def integers(
    *shape: int, dtype: DTypeLike = np.int32, low: int = 0, high: int = 100, seed: int = 0
) -> Array:
    """Return uniformly distributed integers from ``low`` to ``high - 1``."""
    kind: np.dtype[Any] = np.dtype(dtype)
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape)).astype(kind)


def any_integers(*shape: int, dtype: DTypeLike = np.uint8, seed: int = 0) -> Array:
    """Return uniformly distributed integers of the full range of a type."""
    limits = np.iinfo(np.dtype(dtype).name)
    return integers(*shape, dtype=dtype, low=limits.min, high=limits.max + 1, seed=seed)


def corner_integers(dtype: DTypeLike) -> Array:
    """Return integers at which arithmetic often fails: limits, their halves, 0, 1, bit widths."""
    kind: np.dtype[Any] = np.dtype(dtype)
    limits = np.iinfo(kind.name)
    ends = [limits.max, limits.max - 1, limits.max // 2, limits.max // 2 + 1, limits.min]
    small = [0, 1, 2, 7, limits.bits - 1, limits.bits, limits.bits + 1]
    negative = [limits.min + 1, limits.min // 2, -1, -2, -7, -limits.bits] if limits.min else []
    return np.array(sorted({*ends, *small, *negative}), kind)


def corner_cases(op: Op, allowed: Iterable[DType]) -> Iterator[Case]:
    """Yield a case with the corner integers of each integer type."""
    for dtype in sorted((d for d in allowed if d.is_integer), key=lambda d: d.value):
        yield Case(f"corners of {dtype.value}", op, (corner_integers(dtype.numpy),))


def corner_pairs(op: Op, allowed: Iterable[DType]) -> Iterator[Case]:
    """Yield a case with all pairs of corner integers of each integer type."""
    for case in corner_cases(op, allowed):
        (x,) = case.inputs
        yield replace(case, inputs=(None if x is None else x[:, None], x))


HALF_TOLERANCE = 3e-3
"""Tolerance of float16 cases, which allows a backend to compute entirely in float16."""
