"""PDP engine: pooling with maximum, minimum or average over windows of up to 8 x 8.

The average of integers is a sum with two multiplications by 16.16 fixed-point reciprocals, each
rounded; padded columns and rows add a programmed value. Splitting a cube by width changes how the
hardware buffers lines, but not the results.

In fp16, sums are in FP17 (1 sign, 6 exponent, 10 mantissa bits), rounded at every addition. For
columns the sum so far is the first operand of an addition; for rows the new line is. The order
determines the sign of a sum of zero, and which of two NaNs is the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from smelt.nvdla._errors import NvError
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
from smelt.nvdla.hardware._group_registers import flush_nans
from smelt.nvdla.hardware._memory import DTYPES
from smelt.nvdla.hardware._running_operation import ceil_div, split_plane

if TYPE_CHECKING:
    from smelt.nvdla.hardware._arithmetic import Combine
    from smelt.nvdla.hardware._group_registers import GroupRegisters
    from smelt.nvdla.hardware._memory import Array, FloatArray, Surface
    from smelt.nvdla.hardware._running_operation import Operation


def pool_average_fp16(cube: np.ndarray, windows: Windows, pad_words: list[int]) -> np.ndarray:
    """Return the average of every window.

    Padding values and reciprocals are FP17 words. Elements are added in order; the padding of a
    window is added once, after the window's last element inside the input.
    """
    pads = np.array([0.0, *(float(fp17_from_bits(word)) for word in pad_words)])
    total = widen(cube, FP17)
    for axis, window in zip(_AXES, windows, strict=True):
        taps = take_taps(total, axis, window, 0.0)
        amounts = pads[window.padded_counts()]
        if axis == 0:
            amounts = multiply(amounts, np.array(float(windows[0].kernel)), FP17)
        total = _sum_in_order(taps, window, amounts, axis)
    for window in windows:
        total = multiply(total, fp17_from_bits(window.reciprocal), FP17)
    return round_to_fp16(total)


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
_PAD_SIGN_BITS = {1: (8, 9, 10, 10, 11, 11, 11), 2: (16, 17, 18, 18, 19, 19, 19)}
"""Widths of the values of 1 to 7 padded elements, by the size of an element in bytes."""
_AXES = (1, 0)
"""Axes of a cube along which columns and rows are pooled, in this order."""


@dataclass(frozen=True, slots=True)
class PoolingAxis:
    """One axis of a pooling: kernel, stride, padding and extents of input and output."""

    reciprocal: int
    """Reciprocal of the kernel, in 16.16 fixed point or FP17."""
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
        return np.asarray(self.kernel - np.maximum(inside, 0))

    def cut(self, outputs: slice) -> tuple[slice, PoolingAxis]:
        """Return the inputs that a range of outputs needs, and the pooling of these inputs."""
        first = outputs.start * self.stride - self.pad_before
        end = (outputs.stop - 1) * self.stride - self.pad_before + self.kernel
        inputs = slice(max(first, 0), min(end, self.size_in))
        count = outputs.stop - outputs.start
        size_in = inputs.stop - inputs.start
        return inputs, replace(self, pad_before=max(-first, 0), size_in=size_in, size_out=count)


Windows: TypeAlias = tuple[PoolingAxis, PoolingAxis]
"""The poolings of columns and rows."""


def run_pdp(operation: Operation, flying: Array | None) -> None:
    """Run one pooling.

    Args:
        operation: The operation.
        flying: The cube that SDP passes on the fly, or None to read the cube from memory.

    Raises:
        NvdlaError: If the hardware cannot run the operation or a cube lies outside memory.
    """
    target, (columns, rows) = plan_pdp(operation)
    registers = operation.registers["PDP"]
    precision = registers.precision("INPUT_DATA")
    lanes = target.surfaces * operation.configuration.atom_elements(precision)
    expected = (rows.size_in, columns.size_in, lanes)
    cube = flying
    if cube is None:
        extents = columns.size_in, rows.size_in, target.surfaces
        source = operation.registers["PDP_RDMA"].surface("SRC", extents, target.atom_bytes)
        cube = operation.dma.read_cube(source, DTYPES[precision])
    if cube.shape != expected or cube.dtype != DTYPES[precision]:
        wanted, passed = (" x ".join(map(str, extents)) for extents in (expected, cube.shape))
        raise NvError.BAD_VALUE.error(
            f"PDP expects {wanted} (height, width, channels) {precision.name.lower()} elements, "
            f"but SDP passes {passed} elements of {cube.dtype}"
        )
    operation.dma.write_cube(target, _pool_in_tiles(operation, cube, (columns, rows)))
    outputs = target.surfaces * rows.size_out * columns.size_out
    operation.mac_cycles = outputs * columns.kernel


def plan_pdp(operation: Operation) -> tuple[Surface, Windows]:
    """Return the destination and the poolings of columns and rows.

    Raises:
        NvdlaError: If the hardware cannot run the operation or the output lies outside memory.
    """
    registers = operation.registers["PDP"]
    precision = operation.precision("PDP", "INPUT_DATA", "PDP")
    columns, rows = _windows(registers)
    channels = registers.get("CUBE_IN_CHANNEL") + 1
    surfaces = ceil_div(channels, operation.configuration.atom_elements(precision))
    extents = columns.size_out, rows.size_out, surfaces
    atom = operation.configuration.atom_bytes
    target = registers.surface("DST", extents, atom)
    operation.dma.check_target(target)
    return target, (columns, rows)


def _windows(registers: GroupRegisters) -> Windows:
    """Return the poolings of columns and rows; refuse windows that the hardware cannot run."""
    axes: list[PoolingAxis] = []
    for name, padding in (("width", "PAD_LEFT"), ("height", "PAD_TOP")):
        extent = name.upper()
        axis = PoolingAxis(
            registers.get(f"RECIP_KERNEL_{extent}"),
            registers.get(f"KERNEL_{extent}") + 1,
            registers.get(f"KERNEL_STRIDE_{extent}") + 1,
            registers.get(padding),
            registers.get(f"CUBE_IN_{extent}") + 1,
            registers.get(f"CUBE_OUT_{extent}") + 1,
        )
        if axis.kernel > 8:
            raise NvError.BAD_VALUE.error(
                f"PDP {name}: the kernel size is {axis.kernel}; it must be 1 to 8"
            )
        if axis.padded_counts().max() >= axis.kernel:
            raise NvError.BAD_VALUE.error(
                f"PDP {name}: a window contains no input element (kernel size {axis.kernel}, "
                f"stride {axis.stride}, padding {axis.pad_before}, input size {axis.size_in}, "
                f"output size {axis.size_out})"
            )
        axes.append(axis)
    columns, rows = axes
    return columns, rows


def _pool_in_tiles(operation: Operation, cube: Array, windows: Windows) -> np.ndarray:
    """Pool a cube in parts of lines and lanes, which bounds memory and time."""
    (columns, rows), lanes = windows, cube.shape[2]
    output = np.empty((rows.size_out, columns.size_out, lanes), cube.dtype)
    registers = operation.registers["PDP"]
    for lines, part in split_plane(operation, rows.size_out, lanes, columns.size_in * rows.stride):
        inputs, window = rows.cut(lines)
        output[lines, :, part] = _pool(registers, cube[inputs, :, part], (columns, window))
    return output


def _pool(registers: GroupRegisters, cube: Array, windows: Windows) -> np.ndarray:
    """Pool one part of a cube by the programmed method."""
    method = registers.get("POOLING_METHOD")
    if method > MINIMUM:
        raise NvError.BAD_VALUE.error(
            f"the pooling method of PDP is {method}; it must be 0 (average) to {MINIMUM} (minimum)"
        )
    words = [registers.word(f"D_POOLING_PADDING_VALUE_{count}_CFG") for count in range(1, 8)]
    if cube.dtype == np.float16:
        cube = flush_nans(registers, cube)
        if method == AVERAGE:
            return pool_average_fp16(cube, windows, words)
    if method != AVERAGE:
        return _pool_extreme(cube, windows, is_maximum=method == MAXIMUM)
    values = map(sign_extend, words, _PAD_SIGN_BITS[cube.itemsize])
    return _pool_average(cube, windows, list(values)).astype(cube.dtype)


def _pool_extreme(cube: np.ndarray, windows: Windows, *, is_maximum: bool) -> np.ndarray:
    """Return the maximum or minimum of every window, without its padding."""
    combine: Combine
    if cube.dtype == np.float16:
        fill, combine = (-np.inf, maximum) if is_maximum else (np.inf, minimum)
    else:
        limits = np.iinfo(cube.dtype)
        fill, combine = (limits.min, np.maximum) if is_maximum else (limits.max, np.minimum)
    for axis, window in zip(_AXES, windows, strict=True):
        cube, *taps = take_taps(cube, axis, window, fill)
        for tap in taps:
            cube = combine(tap, cube) if axis == 0 else combine(cube, tap)
    return cube


def _pool_average(cube: np.ndarray, windows: Windows, values: list[int]) -> Array:
    """Return the average of integers, with the padding values for 1 to 7 padded elements."""
    table = np.array([0, *values], np.int64)
    total = cube.astype(np.int64)
    for axis, window in zip(_AXES, windows, strict=True):
        taps = take_taps(total, axis, window, 0)
        total = taps[0].copy()
        for tap in taps[1:]:
            total += tap
        padding = table[window.padded_counts()]
        total += padding[:, None] if axis == 1 else padding[:, None, None] * windows[0].kernel
    for window in windows:
        total = shift_right_rounded(total * window.reciprocal, 16)
    return saturate(total, 8 * cube.itemsize)
