"""Winograd convolution: 2 x 2 outputs from 4 x 4 inputs, with 3 x 3 kernels stored as 4 x 4.

Strides are unrolled into channels first. The input transform rounds to the width of the operands,
so the results equal those of the hardware, not those of a direct convolution.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import Precision
from smelt.nvdla.hardware._arithmetic import (
    FP17,
    add,
    extend_infinities,
    round_to_fp16,
    shift_right_saturated,
    subtract,
    widen,
)
from smelt.nvdla.hardware._exact_convolution import convolve_winograd_exact, halve
from smelt.nvdla.hardware._running_operation import add_products

if TYPE_CHECKING:
    from smelt.nvdla.hardware._arithmetic import Combine
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._running_operation import Operation

TILE = 4
"""Height and width of a tile of inputs, and of stored kernels."""
_CHANNELS = 4
"""Channels of one stored block of weights."""


def check_winograd(operation: Operation, shape: ConvolutionShape) -> None:
    """Check that a convolution can run in Winograd mode.

    Raises:
        NvdlaError: NOT_SUPPORTED if the configuration lacks the mode; BAD_VALUE if sizes do not
            fit.
    """
    operation.require_support(operation.configuration.has_winograd, "Winograd mode")
    fits = (
        shape.kernel_height == shape.kernel_width == TILE
        and shape.channels % _CHANNELS == 0
        and shape.output_height % TILE == shape.output_width % TILE == 0
    )
    if not fits:
        raise NvError.BAD_VALUE.error(
            f"Winograd mode needs kernels stored as {TILE} x {TILE}, and channels and output sizes"
            f" that are multiples of 4; CSC has kernels of {shape.kernel_height} x"
            f" {shape.kernel_width} x {shape.channels} and an output of {shape.output_height} x"
            f" {shape.output_width}"
        )


def extend_channels(
    operation: Operation, cube: np.ndarray, shape: ConvolutionShape, fill: float
) -> np.ndarray:
    """Return the padded input with strides unrolled into channels.

    Raises:
        NvdlaError: BAD_VALUE if the input does not consist of whole tiles or is too small.
    """
    cdma = operation.registers["CDMA"]
    pads = [cdma.get(f"PAD_{side}") for side in ("TOP", "BOTTOM", "LEFT", "RIGHT")]
    padded = np.pad(cube, (pads[:2], pads[2:], (0, 0)), constant_values=fill)
    step_x = cdma.get("CONV_X_STRIDE") + 1
    step_y = cdma.get("CONV_Y_STRIDE") + 1
    height, width, channels = padded.shape
    is_whole = height % (TILE * step_y) == width % (TILE * step_x) == 0
    if not is_whole or channels * step_x * step_y != shape.channels:
        raise NvError.BAD_VALUE.error(
            f"the padded input of Winograd mode is {height} x {width} x {channels} (height, width,"
            f" channels) with strides {step_y} and {step_x}; height and width must be multiples of"
            f" {TILE * step_y} and {TILE * step_x}, and CSC must have"
            f" {channels * step_y * step_x} channels, not {shape.channels}"
        )
    split = padded.reshape(height // step_y, step_y, width // step_x, step_x, channels)
    extended = split.transpose(0, 2, 1, 3, 4).reshape(height // step_y, width // step_x, -1)
    if extended.shape[0] < shape.output_height + 2 or extended.shape[1] < shape.output_width + 2:
        raise NvError.BAD_VALUE.error(
            f"an input of {extended.shape[0]} x {extended.shape[1]} is too small for"
            f" {shape.output_height} x {shape.output_width} Winograd outputs; it must be at least"
            f" {shape.output_height + 2} x {shape.output_width + 2}"
        )
    return extended


def unpack_winograd(flat: np.ndarray, shape: ConvolutionShape, group: int) -> np.ndarray:
    """Return stored weights as [4, 4, channels, kernels]."""
    blocks = shape.channels // _CHANNELS
    per_kernel = TILE * TILE * shape.channels
    weights = np.empty((TILE, TILE, shape.channels, shape.kernels), flat.dtype)
    for first in range(0, shape.kernels, group):
        count = min(group, shape.kernels - first)
        part = flat[first * per_kernel : (first + count) * per_kernel]
        cubes = part.reshape(blocks, count, TILE, TILE, _CHANNELS)
        weights[..., first : first + count] = cubes.transpose(2, 3, 0, 4, 1).reshape(
            TILE, TILE, shape.channels, count
        )
    return weights


def convolve_winograd(
    operation: Operation, cube: np.ndarray, weights: np.ndarray, shape: ConvolutionShape
) -> np.ndarray:
    """Return the sums [height, width, kernels] in float64, exact for integers.

    fp16 in exact mode gives float32.
    """
    tiles_y, tiles_x = shape.output_height // 2, shape.output_width // 2
    windows = np.lib.stride_tricks.sliding_window_view(cube, (TILE, TILE), axis=(0, 1))
    tiles = windows[: 2 * tiles_y : 2, : 2 * tiles_x : 2].transpose(3, 4, 0, 1, 2)
    transformed = _transform(operation, tiles, shape.precision)
    pixels = transformed.reshape(TILE, TILE, tiles_y * tiles_x, shape.channels)
    if operation.exact_fp16 and transformed.dtype == np.float16:
        both = convolve_winograd_exact(operation, pixels, weights, shape.kernels)
    else:
        products = np.zeros((TILE, TILE, pixels.shape[2], shape.kernels), np.float64)
        for index in np.ndindex(TILE, TILE):
            inputs, taps = pixels[index].astype(np.float64), weights[index].astype(np.float64)
            add_products(operation, products[index], inputs, extend_infinities(taps))
        both = _reduce(products)
        if transformed.dtype == np.float16:
            # One MAC cell multiplies a whole tile, so a NaN reaches all outputs of the tile.
            both[:, :, np.isnan(products).any(axis=(0, 1))] = np.nan
    ordered = both.reshape(2, 2, tiles_y, tiles_x, shape.kernels).transpose(2, 0, 3, 1, 4)
    return ordered.reshape(shape.output_height, shape.output_width, shape.kernels)


def _reduce(products: np.ndarray) -> np.ndarray:
    """Apply the output transform: return the 2 x 2 outputs of 4 x 4 products."""
    return np.stack([np.stack(halve(row)) for row in halve(products)])


def _transform(operation: Operation, tiles: np.ndarray, precision: Precision) -> np.ndarray:
    """Apply the input transform, with the hardware's rounding."""
    if precision is Precision.FP16:
        plus, minus = partial(add, target=FP17), partial(subtract, target=FP17)
        return round_to_fp16(_transform_tiles(widen(tiles, FP17), plus, minus))
    columns = _transform_tiles(tiles.astype(np.int64), np.add, np.subtract)
    shift = operation.registers["CSC"].get("PRA_TRUNCATE")
    return shift_right_saturated(columns, shift, 8 * precision.size_bytes)


def _transform_tiles(data: np.ndarray, plus: Combine, minus: Combine) -> np.ndarray:
    """Transform the rows of tiles [4, 4, ...], then the columns."""
    for _ in range(2):
        rows = (
            minus(data[0], data[2]),
            plus(data[1], data[2]),
            minus(data[2], data[1]),
            minus(data[1], data[3]),
        )
        data = np.stack(rows).swapaxes(0, 1)
    return data
