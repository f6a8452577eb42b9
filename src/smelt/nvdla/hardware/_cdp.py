"""CDP engine: normalisation across channels.

It sums squares over 3, 5, 7 or 9 channels, looks the sum up in a table and multiplies by the
result. Channels beyond the last one count as 0, in every window and as input.

In fp16, squares and sums are in fp32 in the hardware's order, and everything else is in FP17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._protocols import Precision
from smelt.nvdla.hardware._arithmetic import (
    FP17,
    FP32,
    add,
    multiply,
    round_to_fp16,
    saturate,
    shift_right_rounded,
    sign_extend,
    widen,
)
from smelt.nvdla.hardware._group_registers import flush_nans
from smelt.nvdla.hardware._lut import CDP_STYLE, Lut, look_up, look_up_fp16, read_lut
from smelt.nvdla.hardware._memory import DTYPES
from smelt.nvdla.hardware._running_operation import ceil_div, split_plane

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._running_operation import Operation


def normalise_fp16(operation: Operation, cube: np.ndarray, lut: Lut) -> np.ndarray:
    """Return the normalised fp16 cube."""
    registers = operation.registers["CDP"]
    operation.counters.nan_inputs += int(np.isnan(cube).sum())
    operation.counters.inf_inputs += int(np.isinf(cube).sum())
    values = widen(flush_nans(registers, cube), FP17)
    if registers.get("SQSUM_BYPASS"):
        sums = values
    else:
        reach = registers.get("NORMALZ_LEN") + 1
        sums = _ordered_sums(multiply(values, values, FP32), reach)
    factors = look_up_fp16(sums, lut, operation.counters, CDP_STYLE)
    if registers.get("MUL_BYPASS"):
        factors = np.where(np.isnan(values), values, factors)
    else:
        factors = multiply(values, factors, FP17)
    output = round_to_fp16(factors)
    operation.counters.nan_outputs += int(np.isnan(output).sum())
    return output


def _ordered_sums(squares: FloatArray, reach: int) -> FloatArray:
    """Return the sums of ``reach`` channels on either side, each addition rounded to fp32.

    With channel 4 in the middle, the order is (3 + 5) + 4, then + (2 + 6), + (1 + 7), + (0 + 8).
    """
    channels = squares.shape[2]
    padded = np.pad(squares, ((0, 0), (0, 0), (4, 4)))

    def lane(index: int) -> FloatArray:
        return padded[..., index : index + channels]

    total = add(add(lane(3), lane(5), FP32), lane(4), FP32)
    for distance in range(2, reach + 1):
        pair = add(lane(4 - distance), lane(4 + distance), FP32)
        total = add(total, pair, FP32)
    return total


_LANES = 8
"""Elements per cycle, for the estimate of cycles."""


def run_cdp(operation: Operation) -> None:
    """Run one normalisation from memory to memory."""
    registers = operation.registers["CDP"]
    rdma = operation.registers["CDP_RDMA"]
    precision = operation.precision("CDP", "INPUT_DATA_TYPE", "CDP")
    width, height, channels = rdma.extents()
    atom = operation.configuration.atom_bytes
    extents = width, height, ceil_div(channels, operation.configuration.atom_elements(precision))
    source = rdma.surface("SRC", extents, atom)
    target = registers.surface("DST", extents, atom)
    cube = operation.dma.read_cube(source, DTYPES[precision])
    cube[..., channels:] = 0
    lut = read_lut(registers, operation.luts["CDP"])
    output = np.empty_like(cube)
    for part in split_plane(operation, height, width, cube.shape[2]):
        if precision is Precision.FP16:
            output[part] = normalise_fp16(operation, cube[part], lut)
        else:
            output[part] = _normalise(operation, cube[part], lut, precision, channels)
    operation.dma.write_cube(target, output)
    operation.mac_cycles = ceil_div(cube.size, _LANES)
    _report(operation)


def window_sums(squares: np.ndarray, reach: int) -> np.ndarray:
    """Return for each channel the sum of itself and ``reach`` channels on either side."""
    channels = squares.shape[2]
    padded = np.pad(squares, ((0, 0), (0, 0), (reach, reach)))
    total = padded[..., reach : reach + channels].copy()
    for offset in range(2 * reach + 1):
        if offset != reach:
            total += padded[..., offset : offset + channels]
    return total


def _normalise(
    operation: Operation, cube: np.ndarray, lut: Lut, precision: Precision, channels: int
) -> np.ndarray:
    """Return the normalised integers of a cube."""
    registers = operation.registers["CDP"]
    is_int8 = precision is Precision.INT8
    offset = sign_extend(registers.word("D_DATIN_OFFSET"), 8 if is_int8 else 16)
    scale = registers.signed("DATIN_SCALE")
    shift = registers.get("DATIN_SHIFTER")
    inputs = saturate(
        shift_right_rounded((cube.astype(np.int64) - offset) * scale, shift), 9 if is_int8 else 17
    )
    inputs[..., channels:] = 0
    if registers.get("SQSUM_BYPASS"):
        sums = inputs
    else:
        sums = window_sums(inputs * inputs, registers.get("NORMALZ_LEN") + 1)
    factors = look_up(sums, lut, operation.counters, CDP_STYLE)
    if not registers.get("MUL_BYPASS"):
        factors = factors * inputs
    return _convert(operation, factors, precision)


def _convert(operation: Operation, values: Array, precision: Precision) -> np.ndarray:
    """Run the output converter and count saturation."""
    registers = operation.registers["CDP"]
    is_int8 = precision is Precision.INT8
    offset = sign_extend(registers.word("D_DATOUT_OFFSET"), 25 if is_int8 else 32)
    scale = registers.signed("DATOUT_SCALE")
    shift = registers.get("DATOUT_SHIFTER")
    output = operation.counters.convert(values, (offset, scale, shift), 8 if is_int8 else 16)
    return output.astype(DTYPES[precision])


def _report(operation: Operation) -> None:
    """Set the counter registers."""
    counters = operation.counters
    operation.registers["CDP"].report(
        D_OUT_SATURATION=counters.saturated,
        D_NAN_INPUT_NUM=counters.nan_inputs,
        D_INF_INPUT_NUM=counters.inf_inputs,
        D_NAN_OUTPUT_NUM=counters.nan_outputs,
        **counters.lut_registers(),
    )
