"""SDP engine: the elementwise stages X1, X2 and Y, and the output converter.

An X stage runs ALU, multiplication, rounding shift and ReLU; the shift applies even if the
multiplication is bypassed. Stage Y runs multiplication, ALU and lookup table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.hardware._arithmetic import (
    round_to_fp16,
    saturate,
    shift_left_saturated,
    shift_right_rounded,
    shift_right_saturated,
)
from smelt.nvdla.hardware._configuration import Precision
from smelt.nvdla.hardware._lut import SDP_STYLE, look_up
from smelt.nvdla.hardware._memory import DTYPES, Surface
from smelt.nvdla.hardware._operation import ceil_div, split_plane
from smelt.nvdla.hardware._sdp_float import run_stages_fp16
from smelt.nvdla.hardware._sdp_registers import (
    EQUAL,
    MAXIMUM,
    MINIMUM,
    Operands,
    XStage,
    YConverter,
    YStage,
    read_sdp_lut,
    read_x_stage,
    read_y_stage,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware._lut import Lut
    from smelt.nvdla.hardware._memory import Array
    from smelt.nvdla.hardware._operation import Counters, Operation

_RDMA = (("BS", "BRDMA"), ("BN", "NRDMA"), ("EW", "ERDMA"))


@dataclass(frozen=True, slots=True)
class SdpShape:
    """Extents and precisions of one operation."""

    width: int
    height: int
    channels: int
    batches: int
    processing: Precision
    output: Precision
    lanes: int
    """Channels, rounded up to whole atoms of the processing precision."""


@dataclass(frozen=True, slots=True)
class _Stages:
    """The stages of one operation."""

    x: tuple[XStage, XStage]
    y: YStage
    lut: Lut | None


def run_sdp(operation: Operation, flying: np.ndarray | None) -> np.ndarray | None:
    """Run one operation.

    Args:
        operation: The operation.
        flying: The cubes [batch, height, width, channels] that the convolution passes on the fly,
            or None to read the cube from memory.

    Returns:
        The cube if it goes to PDP on the fly, otherwise None.

    Raises:
        NvdlaError: If the hardware cannot run the operation or a cube lies outside memory.
    """
    registers = operation.registers["SDP"]
    shape = _shape(operation)
    cubes = _read_input(operation, shape) if flying is None else _accept(flying, shape)
    operands = [_read_operands(operation, shape, *names) for names in _RDMA]
    stages = _read_stages(operation)
    output = np.empty(cubes.shape, DTYPES[shape.output])
    is_unequal = False
    elements = shape.batches * shape.lanes
    for lines, columns in split_plane(operation, shape.height, shape.width, elements):
        parts = [operand.cut(lines, columns) for operand in operands]
        inputs = cubes[:, lines, columns]
        output[:, lines, columns], unequal = _run_stages(operation, shape, inputs, parts, stages)
        is_unequal |= bool(unequal)
    operation.mac_cycles = ceil_div(output.size, _throughput(operation))
    _report(operation)
    if stages.y.compares:
        registers.report("D_STATUS", int(is_unequal))
        return None
    if registers.get("D_FEATURE_MODE_CFG", "OUTPUT_DST"):
        passed_on: np.ndarray = output[0]
        return passed_on
    _write_output(operation, shape, output)
    return None


def _read_stages(operation: Operation) -> _Stages:
    """Return the stages that the registers describe."""
    registers = operation.registers["SDP"]
    y_stage = read_y_stage(registers)
    _check_stages(operation, y_stage)
    lut = read_sdp_lut(registers, operation.luts["SDP"]) if y_stage.uses_lut else None
    return _Stages((read_x_stage(registers, "BS"), read_x_stage(registers, "BN")), y_stage, lut)


def _run_stages(
    operation: Operation,
    shape: SdpShape,
    cubes: np.ndarray,
    operands: list[Operands],
    stages: _Stages,
) -> tuple[np.ndarray, bool | None]:
    """Return the output and, if stage Y compares, whether any element differs."""
    if shape.processing is Precision.FP16:
        return run_stages_fp16(operation, cubes, operands, stages.x, stages.y, stages.lut)
    values = cubes.astype(np.int64)
    for stage, operand in zip(stages.x, operands, strict=False):
        values = apply_x_stage(values, stage, operand)
    values = apply_y_stage(values, stages.y, operands[2], stages.lut, operation.counters)
    unequal = bool(values.any()) if stages.y.compares else None
    return convert_output(operation, values, shape.output), unequal


def _report(operation: Operation) -> None:
    """Set the counter registers that are enabled."""
    registers, counters = operation.registers["SDP"], operation.counters
    groups = {
        "PERF_LUT_EN": (
            ("D_PERF_LUT_UFLOW", counters.lut_underflow),
            ("D_PERF_LUT_OFLOW", counters.lut_overflow),
            ("D_PERF_LUT_HYBRID", counters.lut_hybrid),
            ("D_PERF_LUT_LE_HIT", counters.lut_le_hit),
            ("D_PERF_LUT_LO_HIT", counters.lut_lo_hit),
        ),
        "PERF_SAT_EN": (("D_PERF_OUT_SATURATION", counters.saturated),),
        "PERF_NAN_INF_COUNT_EN": (
            ("D_STATUS_NAN_INPUT_NUM", counters.nan_inputs),
            ("D_STATUS_INF_INPUT_NUM", counters.inf_inputs),
            ("D_STATUS_NAN_OUTPUT_NUM", counters.nan_outputs),
        ),
    }
    for field, values in groups.items():
        if registers.get("D_PERF_ENABLE", field):
            for name, value in values:
                registers.report(name, value)


def _throughput(operation: Operation) -> int:
    """Return the elements per cycle, for the estimate of cycles."""
    return max(1, operation.configuration.atomic_k // 2)


def _check_stages(operation: Operation, stage: YStage) -> None:
    """Check that the configuration has stage Y and its lookup table if they are used."""
    configuration = operation.configuration
    if stage.is_active and not configuration.has_sdp_eltwise:
        raise NvdlaError(
            NvError.NOT_SUPPORTED, f"{configuration.name} has no SDP element-wise stage"
        )
    if stage.uses_lut and not configuration.has_sdp_lut:
        raise NvdlaError(NvError.NOT_SUPPORTED, f"{configuration.name} has no SDP lookup table")


def _shape(operation: Operation) -> SdpShape:
    """Return extents and precisions; refuse precisions that the hardware lacks."""
    registers = operation.registers["SDP"]
    processing = registers.precision("D_DATA_FORMAT", "PROC_PRECISION")
    output = registers.precision("D_DATA_FORMAT", "OUT_PRECISION")
    operation.require_precision(processing, "SDP")
    operation.require_precision(output, "SDP's output")
    if processing is Precision.FP16 and output is Precision.INT8:
        raise NvdlaError(NvError.NOT_SUPPORTED, "SDP converts fp16 to int16 or fp16, not to int8")
    channels = registers.get("D_DATA_CUBE_CHANNEL", "CHANNEL") + 1
    elements = operation.configuration.atom_elements(processing)
    return SdpShape(
        registers.get("D_DATA_CUBE_WIDTH", "WIDTH") + 1,
        registers.get("D_DATA_CUBE_HEIGHT", "HEIGHT") + 1,
        channels,
        registers.get("D_FEATURE_MODE_CFG", "BATCH_NUMBER") + 1,
        processing,
        output,
        ceil_div(channels, elements) * elements,
    )


def _accept(flying: np.ndarray, shape: SdpShape) -> np.ndarray:
    """Check the cubes of the convolution and pad their channels to whole atoms."""
    batches, height, width, channels = flying.shape
    if (batches, height, width, channels) != (
        shape.batches,
        shape.height,
        shape.width,
        shape.channels,
    ):
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"SDP expects {shape.batches} x {shape.height} x {shape.width} x {shape.channels}, "
            f"but the convolution passes {batches} x {height} x {width} x {channels}",
        )
    return np.pad(flying, ((0, 0), (0, 0), (0, 0), (0, shape.lanes - channels)))


def _read_input(operation: Operation, shape: SdpShape) -> np.ndarray:
    """Return the source from memory, [1, height, width, lanes]."""
    registers = operation.registers["SDP_RDMA"]
    precision = registers.precision("D_FEATURE_MODE_CFG", "IN_PRECISION")
    operation.require_precision(precision, "SDP's input")
    if (precision is Precision.FP16) != (shape.processing is Precision.FP16):
        raise NvdlaError(
            NvError.BAD_VALUE,
            f"SDP does not convert {precision.name.lower()} in memory to"
            f" {shape.processing.name.lower()}",
        )
    if shape.batches != 1:
        raise NvdlaError(
            NvError.NOT_SUPPORTED, "SDP runs batches only on the fly from the convolution"
        )
    atom = operation.configuration.atom_bytes
    elements = operation.configuration.atom_elements(precision)
    is_point = shape.width == shape.height == 1
    surface = Surface(
        registers.space("D_SRC_DMA_CFG", "SRC_RAM_TYPE"),
        registers.address("D_SRC_BASE_ADDR_LOW", "D_SRC_BASE_ADDR_HIGH"),
        registers.word("D_SRC_LINE_STRIDE"),
        atom if is_point else registers.word("D_SRC_SURFACE_STRIDE"),
        shape.width,
        shape.height,
        ceil_div(shape.lanes, elements),
        atom,
        "SDP_RDMA.D_SRC_BASE_ADDR",
    )
    cube = operation.dma.read_cube(surface, DTYPES[precision])
    return cube[None, :, :, : shape.lanes]


def _read_operands(operation: Operation, shape: SdpShape, stage: str, rdma: str) -> Operands:
    """Return the operands of a stage in memory, each [height or 1, width or 1, lanes]."""
    registers = operation.registers.get("SDP_RDMA")
    config = f"D_{rdma}_CFG"
    if registers is None or registers.get(config, f"{rdma}_DISABLE"):
        return Operands(None, None)
    use = registers.get(config, f"{rdma}_DATA_USE")
    size = 1 + registers.get(config, f"{rdma}_DATA_SIZE")
    is_surface = bool(registers.get(config, f"{rdma}_DATA_MODE"))
    parts = 2 if use == 2 else 1  # ALU and multiplier operands are interleaved
    elements = operation.configuration.atom_elements(shape.processing)
    block = elements * size * parts
    surfaces = shape.lanes // elements
    packed = not is_surface or (shape.width == shape.height == 1)
    surface = Surface(
        registers.space(config, f"{rdma}_RAM_TYPE"),
        registers.address(f"D_{stage}_BASE_ADDR_LOW", f"D_{stage}_BASE_ADDR_HIGH"),
        registers.word(f"D_{stage}_LINE_STRIDE"),
        block if packed else registers.word(f"D_{stage}_SURFACE_STRIDE"),
        shape.width if is_surface else 1,
        shape.height if is_surface else 1,
        surfaces,
        block,
        f"SDP_RDMA.D_{stage}_BASE_ADDR",
    )
    dtype = np.float16 if shape.processing is Precision.FP16 else np.int16
    cube = operation.dma.read_cube(surface, np.int8 if size == 1 else dtype)
    if parts == 2:
        return Operands(cube[..., 0::2], cube[..., 1::2])
    return Operands(cube, None) if use == 1 else Operands(None, cube)


def apply_x_stage(values: Array, stage: XStage, operands: Operands) -> Array:
    """Run stage X1 or X2 on integers."""
    if not stage.is_active:
        return values
    if not stage.alu_bypassed:
        operand = stage.alu_register if stage.alu_from_register else operands.require_alu("X")
        shifted = shift_left_saturated(np.asarray(operand, np.int64), stage.alu_shift, 32)
        if stage.alu == MAXIMUM:
            values = np.maximum(values, shifted)
        elif stage.alu == MINIMUM:
            values = np.minimum(values, shifted)
        else:
            values = values + shifted
    unscaled = values
    if not stage.mul_bypassed:
        operand = stage.mul_register if stage.mul_from_register else operands.require_mul("X")
        values = values * np.asarray(operand, np.int64)
    shifted = shift_right_saturated(values, stage.mul_shift, 32)
    if stage.prelu and not stage.mul_bypassed:
        shifted = np.where(unscaled >= 0, saturate(unscaled, 32), shifted)
    return np.maximum(shifted, 0) if stage.relu else shifted


def apply_y_stage(
    values: Array, stage: YStage, operands: Operands, lut: Lut | None, counters: Counters
) -> Array:
    """Run stage Y on integers: multiplication, ALU and lookup table."""
    if not stage.is_active:
        return values
    if not stage.mul_bypassed:
        operand = (
            stage.mul_register
            if stage.mul_from_register
            else convert_operand(operands.require_mul("Y"), stage.mul_converter)
        )
        product = values * np.asarray(operand, np.int64)
        shifted = shift_right_saturated(product, stage.truncate, 32)
        values = np.where(values >= 0, values, shifted) if stage.prelu else shifted
    if not stage.alu_bypassed:
        operand = (
            stage.alu_register
            if stage.alu_from_register
            else convert_operand(operands.require_alu("Y"), stage.alu_converter)
        )
        values = saturate(_combine(values, np.asarray(operand, np.int64), stage.alu), 32)
    if lut is None:
        return values
    return look_up(values, lut, counters, SDP_STYLE)


def _combine(values: Array, operand: Array, alu: int) -> Array:
    """Run an ALU algorithm on integers."""
    if alu == MAXIMUM:
        return np.maximum(values, operand)
    if alu == MINIMUM:
        return np.minimum(values, operand)
    if alu == EQUAL:
        differs: Array = (values != operand).astype(np.int64)
        return differs
    total: Array = values + operand
    return total


def convert_operand(operand: np.ndarray, converter: YConverter) -> Array:
    """Run the converter of an operand that stage Y reads from memory."""
    values = operand.astype(np.int64)
    if converter.bypassed:
        return values
    return shift_right_saturated(
        (values - converter.offset) * converter.scale, converter.truncate, 32
    )


def convert_output(operation: Operation, values: Array, precision: Precision) -> np.ndarray:
    """Run the output converter on integers: subtract, multiply, shift, clamp."""
    registers = operation.registers["SDP"]
    offset = registers.signed("D_CVT_OFFSET", "CVT_OFFSET")
    scale = registers.signed("D_CVT_SCALE", "CVT_SCALE")
    shift = registers.get("D_CVT_SHIFT", "CVT_SHIFT")
    product = (values - offset) * scale
    wide = shift_right_rounded(product, shift)
    narrow = saturate(wide, 17)
    # The hardware counts a lane as saturated if clamping changed it by more than rounding can.
    floor = product >> min(shift, 62)
    operation.counters.saturated += int((np.abs(floor - narrow) > 1).sum())
    if precision is Precision.FP16:
        return round_to_fp16(narrow.astype(np.float64))
    bits = 8 if precision is Precision.INT8 else 16
    return saturate(narrow, bits).astype(DTYPES[precision])


def _targets(operation: Operation, shape: SdpShape) -> list[Surface]:
    """Return the destination of each batch element."""
    registers = operation.registers["SDP"]
    atom = operation.configuration.atom_bytes
    elements = operation.configuration.atom_elements(shape.output)
    surfaces = ceil_div(shape.channels, elements)
    if shape.processing is Precision.INT8 and shape.output is not Precision.INT8:
        surfaces = ceil_div(shape.lanes, elements)  # both halves of an int8 atom are written
    is_point = shape.width == shape.height == 1
    return [
        Surface(
            registers.space("D_DST_DMA_CFG", "DST_RAM_TYPE"),
            registers.address("D_DST_BASE_ADDR_LOW", "D_DST_BASE_ADDR_HIGH")
            + batch * registers.word("D_DST_BATCH_STRIDE"),
            registers.word("D_DST_LINE_STRIDE"),
            atom if is_point else registers.word("D_DST_SURFACE_STRIDE"),
            shape.width,
            shape.height,
            surfaces,
            atom,
            "SDP.D_DST_BASE_ADDR",
        )
        for batch in range(shape.batches)
    ]


def check_sdp(operation: Operation) -> None:
    """Check the output before the engines compute it.

    Raises:
        NvdlaError: INVALID_ADDRESS if the output lies outside memory; INVALID_SIZE if it is larger
            than memory.
    """
    shape = _shape(operation)
    if not operation.registers["SDP"].get("D_FEATURE_MODE_CFG", "OUTPUT_DST"):
        for target in _targets(operation, shape):
            operation.dma.check_target(target)
    elif shape.width * shape.height * shape.lanes > operation.dma.memory_bytes:
        raise NvdlaError(
            NvError.INVALID_SIZE,
            f"SDP passes {shape.width * shape.height * shape.lanes} elements to PDP, more than "
            "memory has bytes; check SDP's sizes",
        )


def _write_output(operation: Operation, shape: SdpShape, output: np.ndarray) -> None:
    """Write the output of all batch elements to memory."""
    targets = _targets(operation, shape)
    elements = operation.configuration.atom_elements(shape.output)
    lanes = targets[0].surfaces * elements
    padding = max(0, lanes - output.shape[3])
    output = np.pad(output, ((0, 0), (0, 0), (0, 0), (0, padding)))[..., :lanes]
    for target, cube in zip(targets, output, strict=True):
        operation.dma.write_cube(target, cube)
