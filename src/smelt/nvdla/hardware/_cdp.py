"""CDP engine: normalisation across channels.

It sums squares over 3, 5, 7 or 9 channels, looks the sum up in a table and multiplies by the
result. Channels beyond the last one count as 0, in every window and as input.

CDP in fp16: squares and sums in fp32 in the hardware's order, everything else in FP17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._lut import CDP_STYLE, Lut, look_up, look_up_cdp_fp16, read_lut
from smelt.nvdla.hardware._memory import DTYPES, Surface
from smelt.nvdla.hardware._operation import ceil_div, split_plane

if TYPE_CHECKING:
    from smelt.nvdla.hardware._memory import Array, FloatArray
    from smelt.nvdla.hardware._operation import Operation
    from smelt.nvdla.hardware._state import GroupRegisters


def normalise_fp16(operation: Operation, cube: np.ndarray, lut: Lut) -> np.ndarray:
    """Return the normalised fp16 cube."""
    registers = operation.registers["CDP"]
    operation.counters.nan_inputs += int(np.isnan(cube).sum())
    operation.counters.inf_inputs += int(np.isinf(cube).sum())
    values = widen(cube, FP17)
    if registers.get("D_NAN_FLUSH_TO_ZERO", "NAN_TO_ZERO"):
        values = np.where(np.isnan(values), 0.0, values)
    if registers.get("D_FUNC_BYPASS", "SQSUM_BYPASS"):
        sums = values
    else:
        reach = registers.get("D_LRN_CFG", "NORMALZ_LEN") + 1
        sums = _ordered_sums(multiply(values, values, FP32), reach)
    factors = look_up_cdp_fp16(sums, lut, operation.counters)
    if registers.get("D_FUNC_BYPASS", "MUL_BYPASS"):
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
    precision = registers.precision("D_DATA_FORMAT", "INPUT_DATA_TYPE")
    operation.require_precision(precision, "CDP")
    channels = rdma.get("D_DATA_CUBE_CHANNEL", "CHANNEL") + 1
    source, target = _surfaces(operation, precision, channels)
    cube = operation.dma.read_cube(source, DTYPES[precision])
    cube[..., channels:] = 0
    lut = _read_lut(registers, operation.luts["CDP"])
    output = np.empty_like(cube)
    for part in split_plane(operation, source.height, source.width, cube.shape[2]):
        if precision is Precision.FP16:
            output[part] = normalise_fp16(operation, cube[part], lut)
        else:
            output[part] = _normalise(operation, cube[part], lut, precision, channels)
    operation.dma.write_cube(target, output)
    operation.mac_cycles = ceil_div(cube.size, _LANES)
    _report(operation)


def _surfaces(operation: Operation, precision: Precision, channels: int) -> tuple[Surface, Surface]:
    """Return source and destination."""
    registers, rdma = operation.registers["CDP"], operation.registers["CDP_RDMA"]
    width = rdma.get("D_DATA_CUBE_WIDTH", "WIDTH") + 1
    height = rdma.get("D_DATA_CUBE_HEIGHT", "HEIGHT") + 1
    count = ceil_div(channels, operation.configuration.atom_elements(precision))
    atom = operation.configuration.atom_bytes
    source = Surface(
        rdma.space("D_SRC_DMA_CFG", "SRC_RAM_TYPE"),
        rdma.address("D_SRC_BASE_ADDR_LOW", "D_SRC_BASE_ADDR_HIGH"),
        rdma.word("D_SRC_LINE_STRIDE"),
        rdma.word("D_SRC_SURFACE_STRIDE"),
        width,
        height,
        count,
        atom,
        "CDP_RDMA.D_SRC_BASE_ADDR",
    )
    target = Surface(
        registers.space("D_DST_DMA_CFG", "DST_RAM_TYPE"),
        registers.address("D_DST_BASE_ADDR_LOW", "D_DST_BASE_ADDR_HIGH"),
        registers.word("D_DST_LINE_STRIDE"),
        registers.word("D_DST_SURFACE_STRIDE"),
        width,
        height,
        count,
        atom,
        "CDP.D_DST_BASE_ADDR",
    )
    return source, target


def _read_lut(registers: GroupRegisters, tables: tuple[list[int], list[int]]) -> Lut:
    """Return CDP's tables, whose starts and ends have 38 bits."""
    ends = {
        name: sign_extend(
            registers.word(f"S_LUT_{name}_HIGH") << 32 | registers.word(f"S_LUT_{name}_LOW"), 38
        )
        for name in ("LE_START", "LE_END", "LO_START", "LO_END")
    }
    return read_lut(registers, tables, ends)


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
    scale = registers.signed("D_DATIN_SCALE", "DATIN_SCALE")
    shift = registers.get("D_DATIN_SHIFTER", "DATIN_SHIFTER")
    inputs = saturate(
        shift_right_rounded((cube.astype(np.int64) - offset) * scale, shift), 9 if is_int8 else 17
    )
    inputs[..., channels:] = 0
    if registers.get("D_FUNC_BYPASS", "SQSUM_BYPASS"):
        sums = inputs
    else:
        sums = window_sums(inputs * inputs, registers.get("D_LRN_CFG", "NORMALZ_LEN") + 1)
    factors = look_up(sums, lut, operation.counters, CDP_STYLE)
    if not registers.get("D_FUNC_BYPASS", "MUL_BYPASS"):
        factors = factors * inputs
    return _convert(operation, factors, precision)


def _convert(operation: Operation, values: Array, precision: Precision) -> np.ndarray:
    """Run the output converter and count saturation."""
    registers = operation.registers["CDP"]
    is_int8 = precision is Precision.INT8
    offset = sign_extend(registers.word("D_DATOUT_OFFSET"), 25 if is_int8 else 32)
    scale = registers.signed("D_DATOUT_SCALE", "DATOUT_SCALE")
    shift = registers.get("D_DATOUT_SHIFTER", "DATOUT_SHIFTER")
    product = (values - offset) * scale
    output = saturate(shift_right_rounded(product, shift), 8 if is_int8 else 16)
    floor = product >> min(shift, 62)
    operation.counters.saturated += int((np.abs(floor - output) > 1).sum())
    return output.astype(DTYPES[precision])


def _report(operation: Operation) -> None:
    """Set the counter registers."""
    registers, counters = operation.registers["CDP"], operation.counters
    for name, value in (
        ("D_OUT_SATURATION", counters.saturated),
        ("D_PERF_LUT_UFLOW", counters.lut_underflow),
        ("D_PERF_LUT_OFLOW", counters.lut_overflow),
        ("D_PERF_LUT_HYBRID", counters.lut_hybrid),
        ("D_PERF_LUT_LE_HIT", counters.lut_le_hit),
        ("D_PERF_LUT_LO_HIT", counters.lut_lo_hit),
        ("D_NAN_INPUT_NUM", counters.nan_inputs),
        ("D_INF_INPUT_NUM", counters.inf_inputs),
        ("D_NAN_OUTPUT_NUM", counters.nan_outputs),
    ):
        registers.report(name, value)
