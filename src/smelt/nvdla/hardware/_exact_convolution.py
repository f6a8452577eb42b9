"""Bit-exact fp16 convolutions: the lanes of each MAC cell and the order of additions.

Each output is summed over blocks of 64 channels in the outer loop, then over the kernel's rows and
columns. In Winograd mode a cell multiplies 4 channels of a 4 x 4 tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._exact_mac import (
    Accumulator,
    add,
    find_nan,
    make_accumulator,
    multiply_lanes,
    to_fp32,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._memory import Array
    from smelt.nvdla.hardware._operation import Operation

_LANES_AT_ONCE = 1 << 18
"""Number of lanes that are computed together, which bounds the size of temporary arrays."""
_NAN_EXPONENT = 63
"""Exponent with which a MAC cell marks a NaN."""


def correlate_exact(
    operation: Operation, padded: np.ndarray, weights: np.ndarray, shape: ConvolutionShape
) -> np.ndarray:
    """Return the float32 sums [height, width, kernels] of a padded fp16 input."""
    data = np.ascontiguousarray(padded.astype(np.float16)).view(np.uint16).astype(np.int64)
    words = np.ascontiguousarray(weights).view(np.uint16).astype(np.int64)
    pixels = shape.output_height * shape.output_width
    reach_y = (shape.output_height - 1) * shape.stride_y + 1
    reach_x = (shape.output_width - 1) * shape.stride_x + 1
    total = make_accumulator((pixels, shape.kernels))
    block = operation.configuration.atomic_c
    for first in range(0, shape.channels, block):
        lanes = slice(first, min(first + block, shape.channels))
        for y in range(shape.kernel_height):
            top = y * shape.dilation_y
            rows = slice(top, top + reach_y, shape.stride_y)
            for x in range(shape.kernel_width):
                left = x * shape.dilation_x
                columns = slice(left, left + reach_x, shape.stride_x)
                inputs = data[rows, columns, lanes].reshape(pixels, -1)
                _accumulate(operation, total, inputs, words[y, x, lanes].T)
    return to_fp32(total).reshape(shape.output_height, shape.output_width, shape.kernels)


def _accumulate(operation: Operation, total: Accumulator, inputs: Array, words: Array) -> None:
    """Add one MAC cell's result to each [pixel, kernel], for some pixels at a time."""
    step = max(1, _LANES_AT_ONCE // words.size)
    for start in range(0, len(inputs), step):
        operation.check_time()
        part = slice(start, start + step)
        data = inputs[part, None]
        products, exponent = multiply_lanes(data, words[None])
        mantissa = products.sum(axis=-1)
        mantissa, exponent = _with_nans(data, words[None], mantissa, exponent)
        partial = Accumulator(total.exponent[part], total.mantissa[part])
        add(partial, mantissa, exponent)
        total.exponent[part], total.mantissa[part] = partial.exponent, partial.mantissa


def _with_nans(data: Array, words: Array, mantissa: Array, exponent: Array) -> tuple[Array, Array]:
    """Return mantissa and exponent with the NaNs of cells that read one."""
    if not (((data & 0x7FFF) > 0x7C00).any() or ((words & 0x7FFF) > 0x7C00).any()):
        return mantissa, exponent
    is_nan, nan_mantissa = find_nan(data, words)
    return np.where(is_nan, nan_mantissa, mantissa), np.where(is_nan, _NAN_EXPONENT, exponent)


def convolve_winograd_exact(
    operation: Operation, tiles: np.ndarray, weights: np.ndarray, kernels: int
) -> np.ndarray:
    """Return float32 [2, 2, tiles, kernels] of transformed fp16 tiles [4, 4, tiles, channels]."""
    data = np.ascontiguousarray(tiles.astype(np.float16)).view(np.uint16).astype(np.int64)
    words = np.ascontiguousarray(weights).view(np.uint16).astype(np.int64)
    count, channels = data.shape[2:]
    totals = [make_accumulator((count, kernels)) for _ in range(4)]
    for first in range(0, channels, 4):
        operation.check_time()
        lanes = slice(first, first + 4)
        inputs = data[..., lanes].transpose(2, 0, 1, 3).reshape(count, 1, 64)
        weight_lanes = words[:, :, lanes].transpose(3, 0, 1, 2).reshape(1, kernels, 64)
        products, exponent = multiply_lanes(inputs, weight_lanes)
        grid = products.reshape(count, kernels, 4, 4, 4).sum(axis=-1)
        for index, row in enumerate(_halve(grid.transpose(2, 3, 0, 1))):
            for column, mantissa in enumerate(_halve(row)):
                add(
                    totals[2 * index + column],
                    *_with_nans(inputs, weight_lanes, mantissa, exponent),
                )
    return np.stack([to_fp32(total) for total in totals]).reshape(2, 2, count, kernels)


def _halve(grid: Array) -> tuple[Array, Array]:
    """Return two sums of four rows, as the output transform of Winograd adds them."""
    return grid[0] + grid[1] + grid[2], grid[1] - grid[2] - grid[3]
