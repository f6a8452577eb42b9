"""SDP in fp16: all stages compute in fp32, with one rounding per operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._lut import look_up_fp16
from smelt.nvdla.hardware._sdp_registers import EQUAL, MAXIMUM, MINIMUM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.nvdla.hardware._lut import Lut
    from smelt.nvdla.hardware._memory import FloatArray
    from smelt.nvdla.hardware._operation import Operation
    from smelt.nvdla.hardware._sdp_registers import Operands, XStage, YStage


def run_stages_fp16(
    operation: Operation,
    cubes: np.ndarray,
    operands: Sequence[Operands],
    stages: Sequence[XStage],
    y_stage: YStage,
    lut: Lut | None,
) -> tuple[np.ndarray, bool | None]:
    """Return the output and, if stage Y compares, whether any element differs."""
    registers = operation.registers["SDP"]
    flush = bool(registers.get("D_FEATURE_MODE_CFG", "NAN_TO_ZERO"))
    operation.counters.nan_inputs += int(np.isnan(cubes).sum())
    operation.counters.inf_inputs += int(np.isinf(cubes).sum())
    values = _flush_nans(widen(cubes, FP32), is_enabled=flush)
    for stage, operand in zip(stages, operands, strict=False):
        values = _apply_x(values, stage, operand, flush=flush)
    values = _apply_y(values, y_stage, operands[2], flush=flush)
    if lut is not None:
        values = look_up_fp16(values, lut, operation.counters)
    unequal = bool(values.any()) if y_stage.compares else None
    return _convert(operation, values), unequal


def _flush_nans(values: np.ndarray, *, is_enabled: bool) -> FloatArray:
    return np.where(np.isnan(values), 0.0, values) if is_enabled else values


def _combine(values: FloatArray, operand: np.ndarray, alu: int) -> FloatArray:
    if alu == MAXIMUM:
        return maximum(values, operand)
    if alu == MINIMUM:
        return minimum(values, operand)
    if alu == EQUAL:
        return differs(values, operand).astype(np.float64)
    return add(values, operand, FP32)


def _scale(values: FloatArray, operand: np.ndarray, *, prelu: bool) -> FloatArray:
    product = multiply(values, operand, FP32)
    return np.where(np.signbit(values), product, values) if prelu else product


def _apply_x(values: FloatArray, stage: XStage, operands: Operands, *, flush: bool) -> FloatArray:
    """Run stage X1 or X2."""
    if not stage.is_active:
        return values
    if not stage.alu_bypassed:
        operand = (
            fp16_from_bits(stage.alu_register, FP32)
            if stage.alu_from_register
            else widen(operands.require_alu("X"), FP32)
        )
        values = _combine(values, _flush_nans(operand, is_enabled=flush), stage.alu)
    if not stage.mul_bypassed:
        operand = (
            fp16_from_bits(stage.mul_register, FP32)
            if stage.mul_from_register
            else widen(operands.require_mul("X"), FP32)
        )
        values = _scale(values, _flush_nans(operand, is_enabled=flush), prelu=stage.prelu)
    if stage.relu:
        values = np.where(np.isnan(values) | ~np.signbit(values), values, 0.0)
    return values


def _apply_y(values: FloatArray, stage: YStage, operands: Operands, *, flush: bool) -> FloatArray:
    """Run stage Y without its lookup table."""
    if not stage.is_active:
        return values
    if not stage.mul_bypassed:
        operand = (
            fp32_from_bits(stage.mul_register)
            if stage.mul_from_register
            else _flush_nans(widen(operands.require_mul("Y"), FP32), is_enabled=flush)
        )
        values = _scale(values, operand, prelu=stage.prelu)
    if not stage.alu_bypassed:
        operand = (
            fp32_from_bits(stage.alu_register)
            if stage.alu_from_register
            else _flush_nans(widen(operands.require_alu("Y"), FP32), is_enabled=flush)
        )
        values = _combine(values, operand, stage.alu)
    return values


def _convert(operation: Operation, values: FloatArray) -> np.ndarray:
    """Round to the output precision, and count NaNs and saturation."""
    output = round_to_fp16(values)
    operation.counters.nan_outputs += int(np.isnan(output).sum())
    operation.counters.saturated += int((np.abs(output) == np.float16(65504)).sum())
    precision = operation.registers["SDP"].precision("D_DATA_FORMAT", "OUT_PRECISION")
    if precision is Precision.FP16:
        return output
    # Ties round away from zero, as in every integer conversion; NaN becomes the lowest value.
    wide = np.where(np.isnan(output), -32768.0, output.astype(np.float64))
    rounded = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    return saturate(rounded.astype(np.int64), 16).astype(np.int16)
