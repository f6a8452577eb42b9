"""How references compute: what has 16 bits by way of float32, rounded once at the end."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from smelt.ir import Array


def widen(array: Array) -> Array:
    """The array in the type in which a reference computes: float32 for narrower floats."""
    is_narrow = is_float_dtype(array.dtype) and array.dtype.itemsize < np.float32().itemsize
    return array.astype(np.float32) if is_narrow else array


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array rounded to ``dtype``; overflow becomes infinity without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(dtype, copy=False)


def mean(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean along axes, which are kept; of nothing it is not a number."""
    count = prod(x.shape[axis] for axis in axes)
    return np.asarray(x.sum(axis=axes, keepdims=True) / x.dtype.type(count))


def lowest(dtype: np.dtype[Any]) -> float:
    """What no element is below: the largest of nothing."""
    if dtype.kind == "b":
        return False
    return float("-inf") if is_float_dtype(dtype) else int(np.iinfo(dtype).min)


def divide_towards_zero(left: Array, right: Array) -> Array:
    """The quotient of integers without its fraction; zero where ``right`` is zero."""
    divisor = np.where(right == 0, np.ones_like(right), right)
    with np.errstate(over="ignore"):
        floored = np.floor_divide(left, divisor)
        inexact = floored * divisor != left
    rounded: Array = floored + ((left < 0) != (divisor < 0)) * inexact
    return np.asarray(np.where(right == 0, np.zeros_like(rounded), rounded))


def truncate(array: Array, dtype: np.dtype[Any]) -> Array:
    """Floats cut towards zero; what an integer cannot be becomes its nearest, and NaN zero."""
    limits = np.iinfo(dtype)
    low, high = float(limits.min) - 1, float(limits.max + 1)
    wide = array.astype(np.float64)
    made = np.where((wide > low) & (wide < high), wide, 0).astype(dtype)
    made[wide <= low], made[wide >= high] = limits.min, limits.max
    return made


def required(array: Array | None) -> Array:
    """An input that inference has found to be there."""
    if array is None:
        raise TypeError("a required input is missing")
    return array
