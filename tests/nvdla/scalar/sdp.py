"""The single-point data processor: X1, X2, Y with its tables, and the output converter.

Source: NVDLA documentation, Unit Description, "Single Point Data Processor" with its block
diagram (the widths: 32-bit lanes, 33 after the adder, 49 after the multiplier, 64 after Y's);
Precision Preservation (converter, truncate, shifter); In-memory data formats, "FP16 Supporting".
X1 and X2 add before they multiply, Y multiplies before it adds. Operands are cubes of the data's
shape, whatever memory or register they come from; registers skip Y's converters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.nvdla.scalar.arithmetic import (
    UNCHANGED,
    Converter,
    Cube,
    HalfCube,
    Precision,
    saturate,
    shift_right,
)
from tests.nvdla.scalar.floats import SINGLE, Number, read_half, write_half
from tests.nvdla.scalar.lut import (
    SDP_WIDTHS,
    FloatLut,
    Lut,
    LutStatistics,
    look_up,
    look_up_float,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SDP_INFINITY: Final = SINGLE.largest


class Algorithm(IntEnum):
    """What an adder does, as BS_ALU_ALGO and its kin number it; EQUAL is Y's alone."""

    MAX = 0
    MIN = 1
    SUM = 2
    EQUAL = 3


@dataclass(frozen=True, slots=True)
class Adder:
    """An X stage's adder: what it does, with what, and the operand's left shift."""

    algorithm: Algorithm
    operands: Cube
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A stage's multiplier; ``is_prelu`` leaves numbers that are not negative alone."""

    operands: Cube
    is_prelu: bool = False


@dataclass(frozen=True, slots=True)
class PointStage:
    """X1 or X2; an absent part is bypassed. The truncation acts without a multiplier too."""

    adder: Adder | None = None
    multiplier: Multiplier | None = None
    truncate: int = 0
    has_relu: bool = False


@dataclass(frozen=True, slots=True)
class ElementStage:
    """Y; ``adder_converter`` and ``multiplier_converter`` are None where bypassed."""

    adder: Adder | None = None
    adder_converter: Converter | None = None
    multiplier: Multiplier | None = None
    multiplier_converter: Converter | None = None
    truncate: int = 0
    lut: Lut | None = None


@dataclass(frozen=True, slots=True)
class PointProcessor:
    """All stages; an absent one is bypassed."""

    x1: PointStage | None = None
    x2: PointStage | None = None
    y: ElementStage | None = None
    output_precision: Precision = Precision.INT8
    output_converter: Converter = UNCHANGED


@dataclass(slots=True)
class PointResult:
    """The output cube (integers, or halves where the output is fp16) and the counters."""

    integers: Cube
    halves: HalfCube
    saturation_count: int = 0
    unequal: bool = False
    lut: LutStatistics = field(default_factory=LutStatistics)


def process_points(settings: PointProcessor, data: Cube) -> PointResult:
    """Process int8, int16 or accumulator data."""
    result = PointResult(np.zeros_like(data), np.zeros(data.shape, np.float16))
    for index in np.ndindex(data.shape):
        value = int(data[index])
        for stage in (settings.x1, settings.x2):
            if stage is not None:
                value = _apply_point_stage(stage, value, index)
        if settings.y is not None:
            value = _apply_element_stage(settings.y, value, index, result.lut)
        _write(settings, result, index, value)
    return result


def _write(
    settings: PointProcessor, result: PointResult, index: tuple[int, ...], value: int
) -> None:
    """Convert to the output precision; the answers of a comparison go past the converter.

    Source: Precision Preservation, "Convertor" and "Convertor statistics".
    """
    y = settings.y
    if y is not None and y.adder is not None and y.adder.algorithm is Algorithm.EQUAL:
        result.unequal |= value != 0
        result.integers[index] = value
        return
    converter = settings.output_converter
    moved = shift_right((value - converter.offset) * converter.scale, converter.shift)
    if settings.output_precision is Precision.FP16:
        result.halves[index] = write_half(Fraction(saturate(moved, 17)))
        return
    result.integers[index] = saturate(moved, settings.output_precision.width_bits)
    result.saturation_count += int(int(result.integers[index]) != moved)


def _apply_point_stage(stage: PointStage, value: int, index: tuple[int, ...]) -> int:
    """Apply X1 or X2 (block diagram, X1)."""
    if stage.adder is not None:
        operand = saturate(int(stage.adder.operands[index]) << stage.adder.shift, 32)
        value = _combine(stage.adder.algorithm, value, operand)
    multiplier = stage.multiplier
    if multiplier is not None and multiplier.is_prelu and value >= 0:
        value = saturate(value, 32)
    else:
        product = value if multiplier is None else value * int(multiplier.operands[index])
        value = saturate(shift_right(product, stage.truncate), 32)
    return max(value, 0) if stage.has_relu else value


def _apply_element_stage(
    stage: ElementStage, value: int, index: tuple[int, ...], counts: LutStatistics
) -> int:
    """Apply Y (block diagram, Y): the truncation acts with the multiplier only."""
    multiplier = stage.multiplier
    if multiplier is not None and not (multiplier.is_prelu and value >= 0):
        operand = int(multiplier.operands[index])
        if stage.multiplier_converter is not None:
            operand = stage.multiplier_converter.apply(operand, 32)
        value = saturate(shift_right(value * operand, stage.truncate), 32)
    if stage.adder is not None:
        operand = int(stage.adder.operands[index])
        if stage.adder_converter is not None:
            operand = stage.adder_converter.apply(operand, 32)
        value = saturate(_combine(stage.adder.algorithm, value, operand), 32)
    return value if stage.lut is None else look_up(stage.lut, value, SDP_WIDTHS, counts)


def _combine(algorithm: Algorithm, value: int, operand: int) -> int:
    actions: dict[Algorithm, Callable[[int, int], int]] = {
        Algorithm.MAX: max,
        Algorithm.MIN: min,
        Algorithm.SUM: lambda one, other: one + other,
        Algorithm.EQUAL: lambda one, other: int(one != other),
    }
    return actions[algorithm](value, operand)


@dataclass(frozen=True, slots=True)
class FloatAdder:
    """An adder of the fp16 pipe; its operands are halves and are not shifted."""

    algorithm: Algorithm
    operands: HalfCube


@dataclass(frozen=True, slots=True)
class FloatMultiplier:
    """A multiplier of the fp16 pipe."""

    operands: HalfCube
    is_prelu: bool = False


@dataclass(frozen=True, slots=True)
class FloatStage:
    """Any stage of the fp16 pipe; only Y has tables and X1 and X2 a rectifier."""

    adder: FloatAdder | None = None
    multiplier: FloatMultiplier | None = None
    has_relu: bool = False
    lut: FloatLut | None = None


@dataclass(frozen=True, slots=True)
class FloatPointProcessor:
    """The fp16 pipe; fp16 converters do not exist, so nothing converts at its end."""

    x1: FloatStage | None = None
    x2: FloatStage | None = None
    y: FloatStage | None = None
    nan_is_zero: bool = False


def process_half_points(settings: FloatPointProcessor, data: HalfCube) -> HalfCube:
    """Process halves in single precision and round once to halves.

    Source: In-memory data formats, table of precision conversion (fp32 in the pipeline) and
    "FP16 Supporting"; Precision Preservation: no shift, truncation or converter in fp16.
    """
    result = np.zeros(data.shape, np.float16)
    for index in np.ndindex(data.shape):
        value = _read(settings, float(data[index]))
        for stage in (settings.x1, settings.x2):
            if stage is not None:
                value = _add_float(settings, stage, value, index)
                value = _multiply_float(settings, stage, value, index)
                if stage.has_relu and value is not None:
                    value = max(value, Fraction(0))
        if settings.y is not None:
            value = _multiply_float(settings, settings.y, value, index)
            value = _add_float(settings, settings.y, value, index)
            if settings.y.lut is not None:
                value = look_up_float(settings.y.lut, value)
        result[index] = write_half(value)
    return result


def _read(settings: FloatPointProcessor, value: float) -> Number:
    return read_half(value, infinity=SDP_INFINITY, nan_is_zero=settings.nan_is_zero)


def _add_float(
    settings: FloatPointProcessor, stage: FloatStage, value: Number, index: tuple[int, ...]
) -> Number:
    if stage.adder is None:
        return value
    operand = _read(settings, float(stage.adder.operands[index]))
    if value is None or operand is None:
        return None
    if stage.adder.algorithm is Algorithm.SUM:
        return SINGLE.round(value + operand)
    return (max if stage.adder.algorithm is Algorithm.MAX else min)(value, operand)


def _multiply_float(
    settings: FloatPointProcessor, stage: FloatStage, value: Number, index: tuple[int, ...]
) -> Number:
    if stage.multiplier is None:
        return value
    if stage.multiplier.is_prelu and value is not None and value >= 0:
        return value
    operand = _read(settings, float(stage.multiplier.operands[index]))
    return None if value is None or operand is None else SINGLE.round(value * operand)
