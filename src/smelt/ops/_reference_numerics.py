"""Arithmetic of references: 16-bit floats are computed in float32 and rounded once at the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from smelt.ir import Array


def widen(array: Array) -> Array:
    """Convert floats narrower than float32 to float32; return other arrays unchanged."""
    is_narrow = is_float_dtype(array.dtype) and array.dtype.itemsize < np.float32().itemsize
    return array.astype(np.float32) if is_narrow else array


def narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """Round an array to ``dtype``; overflow becomes infinity without a warning."""
    array = np.asarray(array)
    if array.dtype == np.bool_:  # memory of an application may hold other bytes than 0 and 1
        array = array.view(np.uint8) != 0
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype, copy=False)


def mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the mean along axes, which are kept; the mean of no elements is NaN."""
    count = math.prod(x.shape[axis] for axis in axes)
    return np.asarray(x.sum(axis=axes, keepdims=True) / x.dtype.type(count))


def lowest(dtype: np.dtype[Any]) -> float:
    """Return the smallest value of a dtype, which is the maximum of no elements."""
    if dtype.kind == "b":
        return False
    return float("-inf") if is_float_dtype(dtype) else int(np.iinfo(dtype).min)


def divide_towards_zero(left: Array, right: Array) -> Array:
    """Divide integers, rounding towards zero; a quotient by zero is zero."""
    divisor = np.where(right == 0, np.ones_like(right), right)
    with np.errstate(over="ignore"):
        floored = np.floor_divide(left, divisor)
        inexact = floored * divisor != left
    rounded: Array = floored + ((left < 0) != (divisor < 0)) * inexact
    return np.asarray(np.where(right == 0, np.zeros_like(rounded), rounded))


def truncate(array: Array, dtype: np.dtype[Any]) -> Array:
    """Round floats towards zero to integers; saturate values out of range, and convert NaN to 0."""
    limits = np.iinfo(dtype)
    low, high = float(limits.min) - 1, float(limits.max + 1)
    wide = array.astype(np.float64)
    result = np.where((wide > low) & (wide < high), wide, 0).astype(dtype)
    result[wide <= low], result[wide >= high] = limits.min, limits.max
    return result


def softplus(x: Array) -> Array:
    """Return ``log(1 + exp(x))``, without overflow."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


erf = np.vectorize(math.erf, otypes=[np.float64])
"""The error function of each element, in float64."""
ERF_OPERATIONS: Final = 512
"""Operations in the time of one element of `erf`, which takes 100 ns and an object of Python."""
