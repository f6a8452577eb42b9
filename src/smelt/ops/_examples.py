"""Seeded arrays for the cases of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from smelt.ir import Array


def floats(
    *shape: int, dtype: DTypeLike = np.float32, low: float = -1.0, high: float = 1.0, seed: int = 0
) -> Array:
    """Uniformly distributed floating-point numbers."""
    kind: np.dtype[Any] = np.dtype(dtype)
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape)).astype(kind)


def integers(
    *shape: int, dtype: DTypeLike = np.int32, low: int = 0, high: int = 100, seed: int = 0
) -> Array:
    """Uniformly distributed integers from ``low`` to below ``high``."""
    kind: np.dtype[Any] = np.dtype(dtype)
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape)).astype(kind)


HALF_TOLERANCE = 3e-3
"""Of cases in float16: a result may be computed in float16 throughout."""
