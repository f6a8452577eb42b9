"""PDP in fp16: sums in FP17 (1 sign, 6 exponent, 10 mantissa bits), rounded at every addition.

For columns the sum so far is the first operand of an addition; for rows the new line is. The order
determines the sign of a sum of zero, and which of two NaNs is the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._float import (
    FP17,
    add,
    fp17_from_bits,
    maximum,
    minimum,
    multiply,
    round_to_fp16,
    widen,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import FloatArray
    from smelt.nvdla.hardware._pdp import PoolingAxis


def pool_extreme_fp16(
    cube: np.ndarray, columns: PoolingAxis, rows: PoolingAxis, *, is_maximum: bool
) -> np.ndarray:
    """Return the maximum or minimum of every window, without its padding."""
    fill = -np.inf if is_maximum else np.inf
    combine = maximum if is_maximum else minimum
    for axis, window in ((1, columns), (0, rows)):
        taps = take_taps(cube, axis, window, fill)
        cube = taps[0].copy()
        for tap in taps[1:]:
            cube = combine(tap, cube) if axis == 0 else combine(cube, tap)
    return cube.astype(np.float16)


def pool_average_fp16(
    cube: np.ndarray,
    columns: PoolingAxis,
    rows: PoolingAxis,
    pad_words: list[int],
    reciprocals: tuple[int, int],
) -> np.ndarray:
    """Return the average of every window.

    Padding values and reciprocals are FP17 words. Elements are added in order; the padding of a
    window is added once, after the window's last element inside the input.
    """
    pads = np.array([0.0, *(float(fp17_from_bits(word)) for word in pad_words)])
    total = widen(cube, FP17)
    for axis, window, weight in ((1, columns, 1), (0, rows, columns.kernel)):
        taps = take_taps(total, axis, window, 0.0)
        amounts = pads[window.padded_counts()]
        if axis == 0:
            amounts = multiply(amounts, np.array(float(weight)), FP17)
        total = _sum_in_order(taps, window, amounts, axis)
    total = multiply(total, fp17_from_bits(reciprocals[0]), FP17)
    return round_to_fp16(multiply(total, fp17_from_bits(reciprocals[1]), FP17))


def _sum_in_order(
    taps: list[np.ndarray], window: PoolingAxis, amounts: np.ndarray, axis: int
) -> FloatArray:
    """Add the taps of each window in order, and its padding after its last tap inside."""
    start = np.arange(window.size_out) * window.stride - window.pad_before
    shape = (-1, 1) if axis == 1 else (-1, 1, 1)
    padding = amounts.reshape(shape)
    joins = _padding_taps(window, start)
    total = np.zeros_like(taps[0])
    for index, tap in enumerate(taps):
        position = start + index
        inside = ((position >= 0) & (position < window.size_in)).reshape(shape)
        is_first = inside & ((position == 0) | (index == 0)).reshape(shape)
        both = (tap, total) if axis == 0 else (total, tap)
        total = np.where(is_first, tap, np.where(inside, add(*both, FP17), total))
        total = np.where((joins == index).reshape(shape), add(total, padding, FP17), total)
    return total


def _padding_taps(window: PoolingAxis, start: np.ndarray) -> np.ndarray:
    """Return the last tap inside the input, after which padding is added; -1 without padding."""
    last = np.minimum(window.kernel - 1, window.size_in - 1 - start)
    return np.where(window.padded_counts() > 0, last, -1)


def take_taps(cube: np.ndarray, axis: int, window: PoolingAxis, fill: float) -> list[np.ndarray]:
    """Return the elements that each tap of a window reads, along one axis."""
    widths = [(0, 0)] * cube.ndim
    widths[axis] = (window.pad_before, window.pad_after)
    padded = np.pad(cube, widths, constant_values=fill)
    stop = (window.size_out - 1) * window.stride + 1
    steps = [slice(None)] * cube.ndim
    taps: list[np.ndarray] = []
    for tap in range(window.kernel):
        steps[axis] = slice(tap, tap + stop, window.stride)
        taps.append(padded[tuple(steps)])
    return taps
