"""Winograd convolution: 2 x 2 outputs from 4 x 4 inputs, 3 x 3 kernels stored as 4 x 4.

A stride is unrolled into channels first. The input transform rounds to the operand's width, so
results are those of the hardware, not of the direct convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import shift_right_saturated
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._exact_convolution import convolve_winograd_exact
from smelt.nvdla.hardware._float import (
    FP17,
    add,
    extend_infinities,
    round_to_fp16,
    subtract,
    widen,
)
from smelt.nvdla.hardware._operation import add_products

if TYPE_CHECKING:
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._operation import Operation

TILE = 4
_CHANNELS = 4
"""Channels of one stored block of weights."""


def check_winograd(operation: Operation, shape: ConvolutionShape) -> None:
    """Check what Winograd asks of a convolution.

    Raises:
        NvdlaError: the configuration lacks it (NOT_SUPPORTED), or sizes do not fit (BAD_VALUE).
    """
    if not operation.configuration.has_winograd:
        raise NvdlaError(
            NvError.NOT_SUPPORTED, f"{operation.configuration.name} has no Winograd mode"
        )
    fits = (
        shape.kernel_height == shape.kernel_width == TILE
        and shape.channels % _CHANNELS == 0
        and shape.output_height % TILE == shape.output_width % TILE == 0
    )
    if not fits:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"Winograd needs kernels stored as {TILE} x {TILE}, channels and output sizes in fours;"
            f" CSC has {shape.kernel_height} x {shape.kernel_width} x {shape.channels} and"
            f" {shape.output_height} x {shape.output_width}",
        )


def extend_channels(
    operation: Operation, cube: np.ndarray, shape: ConvolutionShape, fill: float
) -> np.ndarray:
    """Return the padded input with strides unrolled into channels."""
    cdma = operation.registers["CDMA"]
    pads = [
        cdma.get("D_ZERO_PADDING", f"PAD_{side}") for side in ("TOP", "BOTTOM", "LEFT", "RIGHT")
    ]
    padded = np.pad(cube, (pads[:2], pads[2:], (0, 0)), constant_values=fill)
    step_x = cdma.get("D_CONV_STRIDE", "CONV_X_STRIDE") + 1
    step_y = cdma.get("D_CONV_STRIDE", "CONV_Y_STRIDE") + 1
    height, width, channels = padded.shape
    is_whole = height % (TILE * step_y) == width % (TILE * step_x) == 0
    if not is_whole or channels * step_x * step_y != shape.channels:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"a padded input of {height} x {width} x {channels} with steps {step_y} and {step_x}"
            f" does not unroll to whole tiles of {shape.channels} channels",
        )
    split = padded.reshape(height // step_y, step_y, width // step_x, step_x, channels)
    extended = split.transpose(0, 2, 1, 3, 4).reshape(height // step_y, width // step_x, -1)
    if extended.shape[0] < shape.output_height + 2 or extended.shape[1] < shape.output_width + 2:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"an input of {extended.shape[0]} x {extended.shape[1]} is too small for"
            f" {shape.output_height} x {shape.output_width} Winograd outputs",
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
    """Return sums [height, width, kernels] in float64, exact for integers."""
    tiles_y, tiles_x = shape.output_height // 2, shape.output_width // 2
    tiles = np.stack(
        [
            np.stack([cube[y : y + 2 * tiles_y : 2, x : x + 2 * tiles_x : 2] for x in range(TILE)])
            for y in range(TILE)
        ]
    )
    transformed = _transform(operation, tiles)
    pixels = transformed.reshape(TILE, TILE, tiles_y * tiles_x, shape.channels)
    if operation.exact_fp16 and transformed.dtype == np.float16:
        both = convolve_winograd_exact(operation, pixels, weights, shape.kernels)
    else:
        products = np.zeros((TILE, TILE, pixels.shape[2], shape.kernels), np.float64)
        for place in np.ndindex(TILE, TILE):
            seen, held = pixels[place].astype(np.float64), weights[place].astype(np.float64)
            add_products(operation, products[place], seen, extend_infinities(held))
        both = _reduce(products)
        if transformed.dtype == np.float16:
            # One multiplier cell takes a whole tile, so a NaN reaches all of its outputs.
            both[:, :, np.isnan(products).any(axis=(0, 1))] = np.nan
    ordered = both.reshape(2, 2, tiles_y, tiles_x, shape.kernels).transpose(2, 0, 3, 1, 4)
    return ordered.reshape(shape.output_height, shape.output_width, shape.kernels)


def _reduce(products: np.ndarray) -> np.ndarray:
    """Return the 2 x 2 outputs of 4 x 4 products."""
    rows = np.stack(
        [products[0] + products[1] + products[2], products[1] - products[2] - products[3]]
    )
    return np.stack(
        [rows[:, 0] + rows[:, 1] + rows[:, 2], rows[:, 1] - rows[:, 2] - rows[:, 3]], axis=1
    )


def _transform(operation: Operation, tiles: np.ndarray) -> np.ndarray:
    """Transform the input, rounding as the hardware does."""
    csc = operation.registers["CSC"]
    precision = csc.precision("D_MISC_CFG", "PROC_PRECISION")
    if precision is Precision.FP16:
        rows = _combine_fp17(widen(tiles, FP17))
        columns = _combine_fp17(rows.swapaxes(0, 1)).swapaxes(0, 1)
        return round_to_fp16(columns)
    rows = _combine(tiles.astype(np.int64))
    columns = _combine(rows.swapaxes(0, 1)).swapaxes(0, 1)
    return shift_right_saturated(
        columns, csc.get("D_PRA_CFG", "PRA_TRUNCATE"), 8 * precision.size_bytes
    )


def _combine_fp17(data: np.ndarray) -> np.ndarray:
    return np.stack(
        [
            subtract(data[0], data[2], FP17),
            add(data[1], data[2], FP17),
            subtract(data[2], data[1], FP17),
            subtract(data[1], data[3], FP17),
        ]
    )


def _combine(data: np.ndarray) -> np.ndarray:
    return np.stack([data[0] - data[2], data[1] + data[2], data[2] - data[1], data[1] - data[3]])
