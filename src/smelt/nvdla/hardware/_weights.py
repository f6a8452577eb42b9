"""CDMA's weight side: kernels from their stored order to [height, width, channels, kernels]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._memory import DTYPES

if TYPE_CHECKING:
    from smelt.nvdla.hardware._configuration import Precision
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._operation import Operation


def read_direct_weights(
    operation: Operation, precision: Precision, shape: ConvolutionShape
) -> np.ndarray:
    """Return the kernels of a direct convolution."""
    elements = shape.kernel_height * shape.kernel_width * shape.channels * shape.kernels
    flat = read_weight_elements(operation, precision, elements)
    group = operation.configuration.kernel_group(precision)
    return unpack_direct(flat, shape, group, operation.configuration.atomic_c)


def read_weight_elements(operation: Operation, precision: Precision, count: int) -> np.ndarray:
    """Return the stored elements in order, expanded if they are compressed."""
    cdma = operation.registers["CDMA"]
    if cdma.get("D_WEIGHT_FORMAT", "WEIGHT_FORMAT"):
        raise NvdlaError(NvError.NOT_SUPPORTED, "compressed")
    data = operation.dma.read_bytes(
        cdma.space("D_WEIGHT_RAM_TYPE", "WEIGHT_RAM_TYPE"),
        cdma.address("D_WEIGHT_ADDR_LOW", "D_WEIGHT_ADDR_HIGH"),
        count * precision.size_bytes,
    )
    return data.view(DTYPES[precision])


def unpack_direct(flat: np.ndarray, shape: ConvolutionShape, group: int, block: int) -> np.ndarray:
    """Reorder groups of kernels, each in blocks of channels: row, column, kernel, channel."""
    rows, columns, channels = shape.kernel_height, shape.kernel_width, shape.channels
    weights = np.empty((rows, columns, channels, shape.kernels), flat.dtype)
    per_kernel = rows * columns * channels
    whole = shape.kernels // group * group
    if whole:
        _unpack_groups(flat[: whole * per_kernel], weights[..., :whole], group, block)
    if whole < shape.kernels:
        rest = shape.kernels - whole
        _unpack_groups(flat[whole * per_kernel :], weights[..., whole:], rest, block)
    return weights


def _unpack_groups(flat: np.ndarray, weights: np.ndarray, group: int, block: int) -> None:
    rows, columns, channels, kernels = weights.shape
    groups = kernels // group
    stored = flat.reshape(groups, -1)
    target = weights.reshape(rows, columns, channels, groups, group)
    full = channels // block * block
    for first, count, size in ((0, full // block, block), (full, 1, channels - full)):
        if not count * size:
            continue
        begin = first * rows * columns * group
        part = stored[:, begin : begin + count * size * rows * columns * group]
        ordered = part.reshape(groups, count, rows, columns, group, size)
        target[:, :, first : first + count * size] = ordered.transpose(2, 3, 1, 5, 0, 4).reshape(
            rows, columns, count * size, groups, group
        )
