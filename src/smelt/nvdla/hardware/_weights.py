"""CDMA's weight input: kernels from their stored order to [height, width, channels, kernels]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._memory import DTYPES
from smelt.nvdla.hardware._operation import ceil_div
from smelt.nvdla.hardware._winograd import unpack_winograd
from smelt.types import Limit

if TYPE_CHECKING:
    from smelt.nvdla.hardware._configuration import Precision
    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._operation import Operation


def read_weights(operation: Operation, precision: Precision, shape: ConvolutionShape) -> np.ndarray:
    """Return the kernels of a convolution in the order that its mode needs.

    Raises:
        NvdlaError: INVALID_SIZE if the kernels are too large; NOT_SUPPORTED if they are compressed
            and the configuration lacks compression; INVALID_ADDRESS if they lie outside memory.
    """
    elements = shape.kernel_height * shape.kernel_width * shape.channels * shape.kernels
    if (size := elements * precision.size_bytes) > Limit.MAX_KERNEL_BYTES.most:
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"kernels of {Limit.MAX_KERNEL_BYTES.excess(size)}; check their size",
        )
    kept = operation.buffer.weights
    is_reused = operation.registers["CDMA"].get("D_MISC_CFG", "WEIGHT_REUSE")
    if kept is not None and is_reused and kept.size == elements:
        flat = kept
    else:
        flat = read_weight_elements(operation, precision, elements)
    operation.buffer.weights = flat
    group = operation.configuration.kernel_group(precision)
    if operation.registers["CDMA"].get("D_MISC_CFG", "CONV_MODE"):
        return unpack_winograd(flat, shape, group)
    csc = operation.registers["CSC"]
    lines = 1 << csc.get("D_POST_Y_EXTENSION", "Y_EXTENSION")
    if lines > 1 and csc.get("D_DATAIN_FORMAT", "DATAIN_FORMAT"):
        return unpack_extended(flat, shape, group, lines)
    return unpack_direct(flat, shape, group, operation.configuration.atomic_c)


def read_weight_elements(operation: Operation, precision: Precision, count: int) -> np.ndarray:
    """Return the stored elements in order; compressed elements are expanded."""
    cdma = operation.registers["CDMA"]
    space = cdma.space("D_WEIGHT_RAM_TYPE", "WEIGHT_RAM_TYPE")
    address = cdma.address("D_WEIGHT_ADDR_LOW", "D_WEIGHT_ADDR_HIGH")
    is_compressed = bool(cdma.get("D_WEIGHT_FORMAT", "WEIGHT_FORMAT"))
    dtype = DTYPES[precision]
    if not is_compressed:
        size_bytes = count * precision.size_bytes
        data = operation.dma.read_bytes(space, address, size_bytes, "CDMA.D_WEIGHT_ADDR")
        return _flush(operation, data.view(dtype))
    if not operation.configuration.has_compression:
        raise NvdlaError(
            NvError.NOT_SUPPORTED,
            f"{operation.configuration.name} does not support compressed weights",
        )
    mask_bytes = operation.dma.read_bytes(
        space,
        cdma.address("D_WMB_ADDR_LOW", "D_WMB_ADDR_HIGH"),
        ceil_div(count, 8),
        "CDMA.D_WMB_ADDR",
    )
    mask = np.unpackbits(mask_bytes, count=count, bitorder="little").astype(bool)
    stored = int(mask.sum())
    data = operation.dma.read_bytes(
        space, address, stored * precision.size_bytes, "CDMA.D_WEIGHT_ADDR"
    )
    elements = np.zeros(count, dtype)
    elements[mask] = data.view(dtype)
    return _flush(operation, elements)


def _flush(operation: Operation, elements: np.ndarray) -> np.ndarray:
    """Count NaNs, and replace them by 0 if that is programmed."""
    if elements.dtype != np.float16:
        return elements
    is_nan = (elements.view(np.uint16) & 0x7FFF) > 0x7C00  # numpy's isnan is slow for fp16
    count = int(is_nan.sum())
    operation.counters.nan_inputs += count
    if count and operation.registers["CDMA"].get("D_NAN_FLUSH_TO_ZERO", "NAN_TO_ZERO"):
        return np.where(is_nan, np.float16(0), elements)
    return elements


def unpack_extended(
    flat: np.ndarray, shape: ConvolutionShape, group: int, lines: int
) -> np.ndarray:
    """Reorder image kernels whose lines are stored in groups of two or four.

    The stored order is group of lines, kernel, line, channel.
    """
    rows, channels = shape.kernel_height, shape.channels
    weights = np.empty((rows, 1, channels, shape.kernels), flat.dtype)
    at = 0
    for first in range(0, shape.kernels, group):
        count = min(group, shape.kernels - first)
        for top in range(0, rows, lines):
            height = min(lines, rows - top)
            part = flat[at : at + height * channels * count].reshape(count, height, channels)
            weights[top : top + height, 0, :, first : first + count] = part.transpose(1, 2, 0)
            at += part.size
    return weights


def unpack_direct(flat: np.ndarray, shape: ConvolutionShape, group: int, block: int) -> np.ndarray:
    """Reorder groups of kernels that are stored in blocks of channels.

    The stored order within a block is row, column, kernel, channel.
    """
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
    """Reorder kernels whose number is a multiple of the group."""
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
