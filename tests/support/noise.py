"""Numbers like weights: what tests multiply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def noise(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normally distributed numbers, the same for a seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
