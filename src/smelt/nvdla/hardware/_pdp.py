"""PDP engine: pooling with maximum, minimum or average over windows of up to 8 x 8.

The average of integers is a sum with two multiplications by 16.16 fixed-point reciprocals, each
rounded; padded columns and rows add a programmed value. Splitting a cube by width changes how the
hardware buffers lines, but not the results.

PDP in fp16: sums in FP17 (1 sign, 6 exponent, 10 mantissa bits), rounded at every addition.

For columns the sum so far is the first operand of an addition; for rows the new line is. The order
determines the sign of a sum of zero, and which of two NaNs is the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import (
    FP17,
    add,
    fp17_from_bits,
    maximum,
    minimum,
    multiply,
    round_to_fp16,
    saturate,
    shift_right_rounded,
    sign_extend,
    widen,
)
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._memory import DTYPES, Surface
from smelt.nvdla.hardware._operation import ceil_div, split_plane

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._operation import Operation
    from smelt.nvdla.hardware._state import GroupRegisters


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


AVERAGE, MAXIMUM, MINIMUM = 0, 1, 2
"""Values of the POOLING_METHOD field."""
_PAD_SIGN_BITS = {
    Precision.INT8: (8, 9, 10, 10, 11, 11, 11),
    Precision.INT16: (16, 17, 18, 18, 19, 19, 19),
}


@dataclass(frozen=True, slots=True)
class PoolingAxis:
    """One axis of a pooling: kernel, stride, padding and extents of input and output."""

    kernel: int
    stride: int
    pad_before: int
    size_in: int
    size_out: int

    @property
    def pad_after(self) -> int:
        """Padding after the input, which follows from the output size."""
        needed = (self.size_out - 1) * self.stride + self.kernel - self.pad_before
        return max(0, needed - self.size_in)

    def padded_counts(self) -> Array:
        """Return the number of padding elements in the window of each output."""
        start = np.arange(self.size_out, dtype=np.int64) * self.stride - self.pad_before
        inside = np.minimum(start + self.kernel, self.size_in) - np.maximum(start, 0)
        padded: Array = self.kernel - np.maximum(inside, 0)
        return padded

    def cut(self, outputs: slice) -> tuple[slice, PoolingAxis]:
        """Return the inputs that a range of outputs needs, and the pooling of these inputs."""
        first = outputs.start * self.stride - self.pad_before
        end = (outputs.stop - 1) * self.stride - self.pad_before + self.kernel
        inputs = slice(max(first, 0), min(end, self.size_in))
        count = outputs.stop - outputs.start
        size_in = inputs.stop - inputs.start
        return inputs, PoolingAxis(self.kernel, self.stride, max(-first, 0), size_in, count)


def run_pdp(operation: Operation, flying: Array | None) -> None:
    """Run one pooling.

    Args:
        operation: The operation.
        flying: The cube that SDP passes on the fly, or None to read the cube from memory.

    Raises:
        NvdlaError: If the hardware cannot run the operation or a cube lies outside memory.
    """
    target, columns, rows = plan_pdp(operation)
    registers = operation.registers["PDP"]
    precision = registers.precision("D_DATA_FORMAT", "INPUT_DATA")
    channels = registers.get("D_DATA_CUBE_IN_CHANNEL", "CUBE_IN_CHANNEL") + 1
    lanes = target.surfaces * operation.configuration.atom_elements(precision)
    cube = _read_input(operation, precision, channels) if flying is None else flying
    expected = (rows.size_in, columns.size_in, lanes)
    if cube.shape != expected or cube.dtype != DTYPES[precision]:
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"PDP expects {expected} {precision.name.lower()} elements, but SDP passes "
            f"{cube.shape} {cube.dtype}",
        )
    operation.dma.write_cube(target, _pool_in_tiles(operation, precision, cube, columns, rows))
    outputs = target.surfaces * rows.size_out * columns.size_out
    operation.mac_cycles = outputs * columns.kernel


def plan_pdp(operation: Operation) -> tuple[Surface, PoolingAxis, PoolingAxis]:
    """Return the destination and the poolings of columns and rows.

    Raises:
        NvdlaError: If the hardware cannot run the operation or the output lies outside memory.
    """
    registers = operation.registers["PDP"]
    precision = registers.precision("D_DATA_FORMAT", "INPUT_DATA")
    operation.require_precision(precision, "PDP")
    columns, rows = _windows(registers)
    channels = registers.get("D_DATA_CUBE_IN_CHANNEL", "CUBE_IN_CHANNEL") + 1
    target = Surface(
        registers.space("D_DST_RAM_CFG", "DST_RAM_TYPE"),
        registers.address("D_DST_BASE_ADDR_LOW", "D_DST_BASE_ADDR_HIGH"),
        registers.word("D_DST_LINE_STRIDE"),
        registers.word("D_DST_SURFACE_STRIDE"),
        columns.size_out,
        rows.size_out,
        ceil_div(channels, operation.configuration.atom_elements(precision)),
        operation.configuration.atom_bytes,
        "PDP.D_DST_BASE_ADDR",
    )
    operation.dma.check_target(target)
    return target, columns, rows


def _windows(registers: GroupRegisters) -> tuple[PoolingAxis, PoolingAxis]:
    """Return the poolings of columns and rows; refuse windows that the hardware cannot run."""
    columns = PoolingAxis(
        registers.get("D_POOLING_KERNEL_CFG", "KERNEL_WIDTH") + 1,
        registers.get("D_POOLING_KERNEL_CFG", "KERNEL_STRIDE_WIDTH") + 1,
        registers.get("D_POOLING_PADDING_CFG", "PAD_LEFT"),
        registers.get("D_DATA_CUBE_IN_WIDTH", "CUBE_IN_WIDTH") + 1,
        registers.get("D_DATA_CUBE_OUT_WIDTH", "CUBE_OUT_WIDTH") + 1,
    )
    rows = PoolingAxis(
        registers.get("D_POOLING_KERNEL_CFG", "KERNEL_HEIGHT") + 1,
        registers.get("D_POOLING_KERNEL_CFG", "KERNEL_STRIDE_HEIGHT") + 1,
        registers.get("D_POOLING_PADDING_CFG", "PAD_TOP"),
        registers.get("D_DATA_CUBE_IN_HEIGHT", "CUBE_IN_HEIGHT") + 1,
        registers.get("D_DATA_CUBE_OUT_HEIGHT", "CUBE_OUT_HEIGHT") + 1,
    )
    for name, axis in (("width", columns), ("height", rows)):
        if axis.kernel > 8 or axis.padded_counts().max() >= axis.kernel:
            raise NvdlaError(
                NvError.BAD_VALUE,
                f"PDP {name}: a window of {axis.kernel} elements, stride {axis.stride} and "
                f"padding {axis.pad_before}, over {axis.size_in} inputs to {axis.size_out} "
                "outputs, has a window without input or more than 8 elements",
            )
    return columns, rows


def _read_input(operation: Operation, precision: Precision, channels: int) -> Array:
    """Return the source from memory."""
    registers = operation.registers["PDP_RDMA"]
    main = operation.registers["PDP"]
    surface = Surface(
        registers.space("D_SRC_RAM_CFG", "SRC_RAM_TYPE"),
        registers.address("D_SRC_BASE_ADDR_LOW", "D_SRC_BASE_ADDR_HIGH"),
        registers.word("D_SRC_LINE_STRIDE"),
        registers.word("D_SRC_SURFACE_STRIDE"),
        main.get("D_DATA_CUBE_IN_WIDTH", "CUBE_IN_WIDTH") + 1,
        main.get("D_DATA_CUBE_IN_HEIGHT", "CUBE_IN_HEIGHT") + 1,
        ceil_div(channels, operation.configuration.atom_elements(precision)),
        operation.configuration.atom_bytes,
        "PDP_RDMA.D_SRC_BASE_ADDR",
    )
    return operation.dma.read_cube(surface, DTYPES[precision])


def _pool_in_tiles(
    operation: Operation, precision: Precision, cube: Array, columns: PoolingAxis, rows: PoolingAxis
) -> np.ndarray:
    """Pool a cube in parts of lines and lanes, which bounds memory and time."""
    lanes = cube.shape[2]
    output = np.empty((rows.size_out, columns.size_out, lanes), cube.dtype)
    registers = operation.registers["PDP"]
    for lines, part in split_plane(operation, rows.size_out, lanes, columns.size_in * rows.stride):
        inputs, window = rows.cut(lines)
        window_inputs = cube[inputs, :, part]
        output[lines, :, part] = _pool(registers, precision, window_inputs, columns, window)
    return output


def _pool(
    registers: GroupRegisters,
    precision: Precision,
    cube: Array,
    columns: PoolingAxis,
    rows: PoolingAxis,
) -> np.ndarray:
    """Pool one part of a cube by the programmed method."""
    method = registers.get("D_OPERATION_MODE_CFG", "POOLING_METHOD")
    if method > MINIMUM:
        raise NvdlaError(NvError.BAD_VALUE, f"the PDP pooling method {method} is not defined")
    reciprocals = (
        registers.get("D_RECIP_KERNEL_WIDTH", "RECIP_KERNEL_WIDTH"),
        registers.get("D_RECIP_KERNEL_HEIGHT", "RECIP_KERNEL_HEIGHT"),
    )
    words = [registers.word(f"D_POOLING_PADDING_VALUE_{count}_CFG") for count in range(1, 8)]
    if precision is Precision.FP16:
        if registers.get("D_NAN_FLUSH_TO_ZERO", "NAN_TO_ZERO"):
            cube = np.where(np.isnan(cube), np.float16(0), cube)
        if method == AVERAGE:
            return pool_average_fp16(cube, columns, rows, words, reciprocals)
        return pool_extreme_fp16(cube, columns, rows, is_maximum=method == MAXIMUM)
    if method != AVERAGE:
        return _pool_extreme(cube, columns, rows, is_maximum=method == MAXIMUM)
    values = [
        sign_extend(word, bits) for word, bits in zip(words, _PAD_SIGN_BITS[precision], strict=True)
    ]
    return _pool_average(cube, columns, rows, values, reciprocals).astype(DTYPES[precision])


def _pool_extreme(
    cube: np.ndarray, columns: PoolingAxis, rows: PoolingAxis, *, is_maximum: bool
) -> np.ndarray:
    limits = np.iinfo(cube.dtype)
    fill, combine = (limits.min, np.maximum) if is_maximum else (limits.max, np.minimum)
    for axis, window in ((1, columns), (0, rows)):
        taps = take_taps(cube, axis, window, int(fill))
        cube = taps[0].copy()
        for tap in taps[1:]:
            combine(cube, tap, out=cube)
    return cube


def _pool_average(
    cube: np.ndarray,
    columns: PoolingAxis,
    rows: PoolingAxis,
    values: list[int],
    reciprocals: tuple[int, int],
) -> Array:
    """Return the average of integers, with the padding values for 1 to 7 padded elements."""
    table = np.array([0, *values], np.int64)
    total = cube.astype(np.int64)
    for axis, window, weight in ((1, columns, 1), (0, rows, columns.kernel)):
        taps = take_taps(total, axis, window, 0)
        total = taps[0].copy()
        for tap in taps[1:]:
            total += tap
        padding = table[window.padded_counts()] * weight
        total += padding[:, None] if axis == 1 else padding[:, None, None]
    total = shift_right_rounded(total * reciprocals[0], 16)
    total = shift_right_rounded(total * reciprocals[1], 16)
    return saturate(total, 8 if cube.dtype == np.int8 else 16)
