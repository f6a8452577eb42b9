"""How references compute: float16 by way of float32, rounded once at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from smelt.ir import Array


def widen(array: Array) -> Array:
    """The array in the type in which a reference computes: float32 for float16, else its own."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array rounded to ``dtype``; overflow becomes infinity without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(dtype, copy=False)


def required(array: Array | None) -> Array:
    """An input that inference has found to be there."""
    if array is None:
        raise TypeError("a required input is absent")
    return array
