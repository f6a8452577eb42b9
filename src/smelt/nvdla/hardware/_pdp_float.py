"""PDP on fp16: sums in FP17 (1 sign, 6 exponent, 10 mantissa bits), rounded at every addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._float import fp17_from_bits, round_to_fp16, round_to_fp17

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import FloatArray
    from smelt.nvdla.hardware._pdp import Pooling


def pool_extreme_fp16(
    cube: np.ndarray, columns: Pooling, rows: Pooling, *, is_maximum: bool
) -> np.ndarray:
    """Return the maximum or minimum of every window; padding takes no part."""
    fill = -np.inf if is_maximum else np.inf
    combine = np.fmax if is_maximum else np.fmin
    for axis, window in ((1, columns), (0, rows)):
        taps = _taps(cube, axis, window, fill)
        cube = taps[0].copy()
        for tap in taps[1:]:
            cube = combine(cube, tap)
    return cube


def pool_average_fp16(
    cube: np.ndarray,
    columns: Pooling,
    rows: Pooling,
    pad_words: list[int],
    reciprocals: tuple[int, int],
) -> np.ndarray:
    """Return the average of every window.

    Padding values and reciprocals are FP17 words. Sums run in the order of the elements; the
    padding of a window is added once, after the element at the edge that it adjoins.
    """
    pads = np.array([0.0, *(fp17_from_bits(word) for word in pad_words)], np.float32)
    total = cube.astype(np.float32)
    for axis, window, weight in ((1, columns, 1), (0, rows, columns.kernel)):
        taps = _taps(total, axis, window, 0.0)
        amounts = round_to_fp17(pads[window.padded_counts()] * np.float32(weight))
        shape = (-1, 1) if axis == 1 else (-1, 1, 1)
        total = _sum_in_order(taps, window, amounts.reshape(shape), axis)
    total = round_to_fp17(total * np.float32(fp17_from_bits(reciprocals[0])))
    total = round_to_fp17(total * np.float32(fp17_from_bits(reciprocals[1])))
    return round_to_fp16(total)


def _sum_in_order(
    taps: list[np.ndarray], window: Pooling, amounts: np.ndarray, axis: int
) -> FloatArray:
    """Add taps in order; the padding joins after the window's last element inside the cube."""
    start = np.arange(window.size_out) * window.stride - window.pad_before
    shape = (-1, 1) if axis == 1 else (-1, 1, 1)
    total = np.zeros_like(taps[0])
    for index, tap in enumerate(taps):
        position = start + index
        inside = ((position >= 0) & (position < window.size_in)).reshape(shape)
        total = np.where(inside, round_to_fp17(total + tap), total)
    return round_to_fp17(total + amounts)


def _taps(cube: np.ndarray, axis: int, window: Pooling, fill: float) -> list[np.ndarray]:
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
