"""CDP in fp16: squares and sums in fp32 in the hardware's order, everything else in FP17."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._float import FP17, FP32, add, multiply, round_to_fp16, widen
from smelt.nvdla.hardware._lut_float import look_up_cdp_fp16

if TYPE_CHECKING:
    from smelt.nvdla.hardware._lut import Lut
    from smelt.nvdla.hardware._memory import FloatArray
    from smelt.nvdla.hardware._operation import Operation


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
