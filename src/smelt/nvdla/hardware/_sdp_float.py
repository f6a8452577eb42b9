"""SDP in fp16: all stages compute in fp32, with one rounding per operation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._protocols import Precision
from smelt.nvdla.hardware._arithmetic import (
    FP32,
    add,
    differs,
    fp16_from_bits,
    fp32_from_bits,
    maximum,
    minimum,
    multiply,
    round_to_fp16,
    saturate,
    widen,
)
from smelt.nvdla.hardware._lut import SDP_STYLE, look_up_fp16

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.nvdla.hardware._arithmetic import Combine
    from smelt.nvdla.hardware._memory import FloatArray
    from smelt.nvdla.hardware._running_operation import Operation
    from smelt.nvdla.hardware._sdp_registers import Operands, Stages, UnitOperand, XStage, YStage


def run_stages_fp16(
    operation: Operation, cubes: np.ndarray, operands: Sequence[Operands], stages: Stages
) -> tuple[np.ndarray, bool]:
    """Return the output, and whether stage Y compares and any element differs."""
    registers = operation.registers["SDP"]
    flush = bool(registers.get("NAN_TO_ZERO"))
    operation.counters.nan_inputs += int(np.isnan(cubes).sum())
    operation.counters.inf_inputs += int(np.isinf(cubes).sum())
    values = _flush_nans(widen(cubes, FP32), is_enabled=flush)
    for stage, operand in zip(stages.x, operands, strict=False):
        values = _apply_x(values, stage, operand, flush=flush)
    values = _apply_y(values, stages.y, operands[2], flush=flush)
    if stages.lut is not None:
        values = look_up_fp16(values, stages.lut, operation.counters, SDP_STYLE)
    unequal = stages.y.compares and bool(values.any())
    return _convert(operation, values), unequal


def _flush_nans(values: np.ndarray, *, is_enabled: bool) -> FloatArray:
    return np.where(np.isnan(values), 0.0, values) if is_enabled else values


def _differ(values: FloatArray, operand: np.ndarray) -> FloatArray:
    return differs(values, operand).astype(np.float64)


_ALGORITHMS: tuple[Combine, ...] = (maximum, minimum, partial(add, target=FP32), _differ)
"""ALU algorithms on fp32, by the value of the ALU_ALGO field."""


def _scale(values: FloatArray, operand: np.ndarray, *, prelu: bool) -> FloatArray:
    product = multiply(values, operand, FP32)
    return np.where(np.signbit(values), product, values) if prelu else product


def _x_operand(unit: UnitOperand, operand: np.ndarray | None, *, flush: bool) -> FloatArray:
    """Return an operand of stage X1 or X2; NaNs of registers are flushed too."""
    if unit.from_register:
        return _flush_nans(fp16_from_bits(unit.register, FP32), is_enabled=flush)
    return _flush_nans(widen(unit.require(operand), FP32), is_enabled=flush)


def _y_operand(unit: UnitOperand, operand: np.ndarray | None, *, flush: bool) -> FloatArray:
    """Return an operand of stage Y; NaNs of registers stay."""
    if unit.from_register:
        return fp32_from_bits(unit.register)
    return _flush_nans(widen(unit.require(operand), FP32), is_enabled=flush)


def _apply_x(values: FloatArray, stage: XStage, operands: Operands, *, flush: bool) -> FloatArray:
    """Run stage X1 or X2."""
    if not stage.is_active:
        return values
    if not stage.alu.is_bypassed:
        operand = _x_operand(stage.alu, operands.alu, flush=flush)
        values = _ALGORITHMS[stage.algorithm](values, operand)
    if not stage.mul.is_bypassed:
        operand = _x_operand(stage.mul, operands.mul, flush=flush)
        values = _scale(values, operand, prelu=stage.prelu)
    if stage.relu:
        values = np.where(np.isnan(values) | ~np.signbit(values), values, 0.0)
    return values


def _apply_y(values: FloatArray, stage: YStage, operands: Operands, *, flush: bool) -> FloatArray:
    """Run stage Y without its lookup table."""
    if not stage.is_active:
        return values
    if not stage.mul.is_bypassed:
        operand = _y_operand(stage.mul, operands.mul, flush=flush)
        values = _scale(values, operand, prelu=stage.prelu)
    if not stage.alu.is_bypassed:
        operand = _y_operand(stage.alu, operands.alu, flush=flush)
        values = _ALGORITHMS[stage.algorithm](values, operand)
    return values


def _convert(operation: Operation, values: FloatArray) -> np.ndarray:
    """Round to the output precision, and count NaNs and saturation."""
    output = round_to_fp16(values)
    operation.counters.nan_outputs += int(np.isnan(output).sum())
    operation.counters.saturated += int((np.abs(output) == np.float16(65504)).sum())
    precision = operation.registers["SDP"].precision("OUT_PRECISION")
    if precision is Precision.FP16:
        return output
    # Ties round away from zero, as in every integer conversion; NaN becomes the lowest value.
    wide = np.where(np.isnan(output), -32768.0, output.astype(np.float64))
    rounded = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    return saturate(rounded.astype(np.int64), 16).astype(np.int16)
