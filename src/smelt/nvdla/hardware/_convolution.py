"""Convolution pipeline: CDMA, CSC, CMAC and CACC as one operation whose output goes to SDP.

Integer products and sums are exact: matrix products use float64, or float32 if no partial sum can
exceed 2**24. CACC shifts with rounding and clamps to 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import Precision
from smelt.nvdla.hardware._arithmetic import (
    extend_infinities,
    saturate,
    shift_right_rounded,
    sums_to_fp32,
)
from smelt.nvdla.hardware._exact_convolution import correlate_exact
from smelt.nvdla.hardware._image import pad_value, read_features, read_image, read_weights
from smelt.nvdla.hardware._memory import check_buffer, common_field
from smelt.nvdla.hardware._running_operation import add_products, ceil_div
from smelt.nvdla.hardware._winograd import check_winograd, convolve_winograd, extend_channels
from smelt.types import Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.nvdla.hardware._running_operation import Operation

_MAX_PAD_AFTER = 63
"""Maximum padding below or to the right of an input: PAD_BOTTOM and PAD_RIGHT have 6 bits."""

_EXACT_FLOAT32_TERMS = 1024
"""Number of int8 products whose sum is exact in float32: 1024 * 2**14 = 2**24."""


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """Sizes of one convolution, as programmed in CSC."""

    precision: Precision
    kernel_height: int
    kernel_width: int
    channels: int
    kernels: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    pad_top: int
    pad_left: int
    output_height: int
    output_width: int

    @property
    def macs(self) -> int:
        """Number of multiplications of one batch element."""
        window = self.kernel_height * self.kernel_width * self.channels
        return window * self.kernels * self.output_height * self.output_width

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the padded input that the output needs."""
        return (
            (self.output_height - 1) * self.stride_y
            + 1
            + (self.kernel_height - 1) * self.dilation_y,
            (self.output_width - 1) * self.stride_x + 1 + (self.kernel_width - 1) * self.dilation_x,
        )

    def taps(self) -> Iterator[tuple[tuple[int, int], tuple[slice, slice]]]:
        """Yield row and column of each tap, and the lines and columns of input that it reads."""
        reach_y = (self.output_height - 1) * self.stride_y + 1
        reach_x = (self.output_width - 1) * self.stride_x + 1
        for y, x in np.ndindex(self.kernel_height, self.kernel_width):
            top, left = y * self.dilation_y, x * self.dilation_x
            lines = slice(top, top + reach_y, self.stride_y)
            yield (y, x), (lines, slice(left, left + reach_x, self.stride_x))


def read_shape(operation: Operation) -> ConvolutionShape:
    """Return the shape that CSC's registers describe.

    Raises:
        NvdlaError: BAD_VALUE if the number of output channels is not that of the kernels;
            INVALID_SIZE if there are too many multiplications; BAD_VALUE or NOT_SUPPORTED if the
            precision is invalid.
    """
    csc = operation.registers["CSC"]
    shape = ConvolutionShape(
        precision=operation.precision("CSC", "PROC_PRECISION", "the convolution"),
        kernel_height=csc.get("WEIGHT_HEIGHT_EXT") + 1,
        kernel_width=csc.get("WEIGHT_WIDTH_EXT") + 1,
        channels=csc.get("WEIGHT_CHANNEL_EXT") + 1,
        kernels=csc.get("WEIGHT_KERNEL") + 1,
        stride_y=csc.get("CONV_Y_STRIDE_EXT") + 1,
        stride_x=csc.get("CONV_X_STRIDE_EXT") + 1,
        dilation_y=csc.get("Y_DILATION_EXT") + 1,
        dilation_x=csc.get("X_DILATION_EXT") + 1,
        pad_top=csc.get("PAD_TOP"),
        pad_left=csc.get("PAD_LEFT"),
        output_height=csc.get("DATAOUT_HEIGHT") + 1,
        output_width=csc.get("DATAOUT_WIDTH") + 1,
    )
    outputs = csc.get("DATAOUT_CHANNEL") + 1
    if outputs != shape.kernels:
        raise NvError.BAD_VALUE.error(
            f"CSC has {shape.kernels} kernels but {outputs} output channels; they must be equal"
        )
    if shape.macs > Limit.MAX_MACS.most:
        raise NvError.INVALID_SIZE.error(
            f"the convolution has {Limit.MAX_MACS.excess(shape.macs)}; check its sizes"
        )
    return shape


def run_convolution(operation: Operation) -> np.ndarray:
    """Return the output of CACC for SDP: [batch, height, width, kernels], int32 or fp32.

    Raises:
        NvdlaError: If the hardware cannot run the operation or data lies outside memory.
    """
    cdma = operation.registers["CDMA"]
    shape = read_shape(operation)
    is_winograd = bool(cdma.get("CONV_MODE"))
    _check_modes(operation)
    if is_winograd:
        check_winograd(operation, shape)
    check_buffer(operation, shape)
    fill = pad_value(operation, shape.precision, "CSC")
    if cdma.get("DATAIN_FORMAT"):
        windows, shape = read_image(operation, shape)
        data = [windows]
    else:
        data = _read_or_reuse(operation, shape.precision)
    weights = read_weights(operation, shape)
    if is_winograd:
        cubes = [extend_channels(operation, cube, shape, fill) for cube in data]
        sums = np.stack([convolve_winograd(operation, cube, weights, shape) for cube in cubes])
    else:
        _check_channels(data[0], shape)
        sums = np.stack([correlate(operation, cube, weights, shape, fill) for cube in data])
    group = operation.configuration.kernel_group(shape.precision)
    operation.mac_cycles = (
        shape.output_height
        * shape.output_width
        * shape.kernel_height
        * shape.kernel_width
        * ceil_div(shape.channels, operation.configuration.atomic_c)
        * ceil_div(shape.kernels, group)
        * len(data)
    )
    return accumulate(operation, sums, shape.precision)


def _check_modes(operation: Operation) -> None:
    """Check that CDMA and CSC have the same modes and that the modes are compatible."""
    is_winograd = common_field(operation, "CONV_MODE")
    common_field(operation, "PROC_PRECISION")
    if common_field(operation, "DATAIN_FORMAT") and is_winograd:
        raise NvError.BAD_VALUE.error("Winograd mode needs feature data, not pixels")


def _read_or_reuse(operation: Operation, precision: Precision) -> list[np.ndarray]:
    """Return the input, or the data that the previous convolution left in the buffer."""
    kept = operation.buffer.data
    if kept is None or not operation.registers["CDMA"].get("DATA_REUSE"):
        kept = read_features(operation, precision)
    operation.buffer.data = kept
    return kept


def _check_channels(cube: np.ndarray, shape: ConvolutionShape) -> None:
    if cube.shape[2] < shape.channels:
        raise NvError.BAD_VALUE.error(
            f"CSC's kernels have {shape.channels} channels, but CDMA reads {cube.shape[2]}"
        )


def correlate(
    operation: Operation,
    cube: np.ndarray,
    weights: np.ndarray,
    shape: ConvolutionShape,
    fill: float,
) -> np.ndarray:
    """Return the sums [height, width, kernels] in float64, exact for integers.

    ``cube`` is [height, width, channels], ``weights`` is [kernel height, kernel width, channels,
    kernels]. fp16 in exact mode gives float32.
    """
    precision = shape.precision
    if precision is Precision.FP16 and operation.exact_fp16:
        padded = _pad(cube, shape, fill, np.float16)
        return correlate_exact(operation, padded, weights, shape)
    use_float32 = precision is Precision.INT8 and shape.channels <= _EXACT_FLOAT32_TERMS
    dtype = np.float32 if use_float32 else np.float64
    padded = _pad(cube, shape, fill, dtype)
    taps = weights.astype(dtype)
    if precision is Precision.FP16:
        padded, taps = extend_infinities(padded), extend_infinities(taps)
    total = np.zeros((shape.output_height * shape.output_width, shape.kernels), np.float64)
    for tap, window in shape.taps():
        inputs = padded[window].reshape(-1, shape.channels)
        add_products(operation, total, inputs, taps[tap])
    return total.reshape(shape.output_height, shape.output_width, shape.kernels)


def _pad(
    cube: np.ndarray, shape: ConvolutionShape, fill: float, dtype: type[np.generic]
) -> np.ndarray:
    """Return the input with padding, at the size that the output needs.

    Raises:
        NvdlaError: BAD_VALUE if the output needs more padding than can be programmed.
    """
    size = shape.input_size
    before_end = (shape.pad_top + cube.shape[0], shape.pad_left + cube.shape[1])
    if any(
        extent > inside + _MAX_PAD_AFTER for extent, inside in zip(size, before_end, strict=True)
    ):
        raise NvError.BAD_VALUE.error(
            f"the output needs a padded input of {size[0]} x {size[1]} (height, width); the input "
            f"with its top and left padding is {before_end[0]} x {before_end[1]}, to which bottom "
            f"and right padding can add at most {_MAX_PAD_AFTER}"
        )
    padded = np.full((*size, shape.channels), fill, dtype)
    rows = max(0, min(cube.shape[0], size[0] - shape.pad_top))
    columns = max(0, min(cube.shape[1], size[1] - shape.pad_left))
    inside = padded[shape.pad_top : shape.pad_top + rows, shape.pad_left :]
    inside[:, :columns] = cube[:rows, :columns, : shape.channels]
    return padded


def accumulate(operation: Operation, sums: np.ndarray, precision: Precision) -> np.ndarray:
    """Return CACC's output: rounded fp32, or integers shifted and clamped to 32 bits."""
    cacc = operation.registers["CACC"]
    if precision is Precision.FP16:
        return sums if operation.exact_fp16 else sums_to_fp32(sums)
    shifted = shift_right_rounded(saturate(sums.astype(np.int64), 48), cacc.get("CLIP_TRUNCATE"))
    clamped = saturate(shifted, 32)
    operation.counters.saturated += int((shifted != clamped).sum())
    cacc.report(D_OUT_SATURATION=operation.counters.saturated)
    return clamped
