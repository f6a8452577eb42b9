"""SDP engine: the elementwise stages X1, X2 and Y, and the output converter.

An X stage runs ALU, multiplication, rounding shift and ReLU; the shift applies even if the
multiplication is bypassed. Stage Y runs multiplication, ALU and lookup table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import Precision
from smelt.nvdla.hardware._arithmetic import (
    round_to_fp16,
    saturate,
    shift_left_saturated,
    shift_right_saturated,
)
from smelt.nvdla.hardware._lut import SDP_STYLE, look_up, read_lut
from smelt.nvdla.hardware._memory import DTYPES
from smelt.nvdla.hardware._running_operation import ceil_div, split_plane
from smelt.nvdla.hardware._sdp_float import run_stages_fp16
from smelt.nvdla.hardware._sdp_registers import (
    SUM,
    Operands,
    Stages,
    UnitOperand,
    XStage,
    YConverter,
    YStage,
    read_x_stage,
    read_y_stage,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware._arithmetic import Combine
    from smelt.nvdla.hardware._lut import Lut
    from smelt.nvdla.hardware._memory import Array, Surface
    from smelt.nvdla.hardware._running_operation import Counters, Operation

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

    @property
    def is_point(self) -> bool:
        """Whether the cube is a single pixel, whose atoms are side by side."""
        return self.width == self.height == 1


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
        is_unequal |= unequal
    elements_per_cycle = max(1, operation.configuration.atomic_k // 2)
    operation.mac_cycles = ceil_div(output.size, elements_per_cycle)
    _report(operation)
    if stages.y.compares:
        registers.report(D_STATUS=int(is_unequal))
        return None
    if registers.get("OUTPUT_DST"):
        return np.asarray(output[0])
    _write_output(operation, shape, output)
    return None


def _read_stages(operation: Operation) -> Stages:
    """Return the stages that the registers describe."""
    registers = operation.registers["SDP"]
    y_stage = read_y_stage(registers)
    lut = None
    if y_stage.is_active:
        configuration = operation.configuration
        operation.require_support(configuration.has_sdp_eltwise, "SDP element-wise stage")
        if y_stage.uses_lut:
            operation.require_support(configuration.has_sdp_lut, "SDP lookup table")
            lut = read_lut(registers, operation.luts["SDP"])
    return Stages((read_x_stage(registers, "BS"), read_x_stage(registers, "BN")), y_stage, lut)


def _run_stages(
    operation: Operation,
    shape: SdpShape,
    cubes: np.ndarray,
    operands: list[Operands],
    stages: Stages,
) -> tuple[np.ndarray, bool]:
    """Return the output, and whether stage Y compares and any element differs."""
    if shape.processing is Precision.FP16:
        return run_stages_fp16(operation, cubes, operands, stages)
    values = cubes.astype(np.int64)
    for stage, operand in zip(stages.x, operands, strict=False):
        values = apply_x_stage(values, stage, operand)
    values = apply_y_stage(values, stages.y, operands[2], stages.lut, operation.counters)
    unequal = stages.y.compares and bool(values.any())
    return convert_output(operation, values, shape.output), unequal


def _report(operation: Operation) -> None:
    """Set the counter registers that are enabled."""
    registers, counters = operation.registers["SDP"], operation.counters
    groups = {
        "PERF_LUT_EN": counters.lut_registers(),
        "PERF_SAT_EN": {"D_PERF_OUT_SATURATION": counters.saturated},
        "PERF_NAN_INF_COUNT_EN": {
            "D_STATUS_NAN_INPUT_NUM": counters.nan_inputs,
            "D_STATUS_INF_INPUT_NUM": counters.inf_inputs,
            "D_STATUS_NAN_OUTPUT_NUM": counters.nan_outputs,
        },
    }
    for field, values in groups.items():
        if registers.get(field):
            registers.report(**values)


def _shape(operation: Operation) -> SdpShape:
    """Return extents and precisions; refuse precisions that the hardware lacks."""
    registers = operation.registers["SDP"]
    processing = operation.precision("SDP", "PROC_PRECISION", "SDP")
    output = operation.precision("SDP", "OUT_PRECISION", "SDP's output")
    if processing is Precision.FP16 and output is Precision.INT8:
        raise NvError.NOT_SUPPORTED.error("SDP converts fp16 to int16 or fp16, not to int8")
    width, height, channels = registers.extents()
    elements = operation.configuration.atom_elements(processing)
    return SdpShape(
        width,
        height,
        channels,
        registers.get("BATCH_NUMBER") + 1,
        processing,
        output,
        ceil_div(channels, elements) * elements,
    )


def _accept(flying: np.ndarray, shape: SdpShape) -> np.ndarray:
    """Check the cubes of the convolution and pad their channels to whole atoms."""
    expected = (shape.batches, shape.height, shape.width, shape.channels)
    if flying.shape != expected:
        wanted, passed = (" x ".join(map(str, extents)) for extents in (expected, flying.shape))
        raise NvError.BAD_VALUE.error(
            f"SDP expects {wanted} (batch, height, width, channels), but the convolution passes "
            f"{passed}"
        )
    return np.pad(flying, ((0, 0), (0, 0), (0, 0), (0, shape.lanes - shape.channels)))


def _read_input(operation: Operation, shape: SdpShape) -> np.ndarray:
    """Return the source from memory, [1, height, width, lanes]."""
    registers = operation.registers["SDP_RDMA"]
    precision = operation.precision("SDP_RDMA", "IN_PRECISION", "SDP's input")
    if (precision is Precision.FP16) != (shape.processing is Precision.FP16):
        raise NvError.BAD_VALUE.error(
            f"SDP does not convert {precision.name.lower()} in memory to"
            f" {shape.processing.name.lower()}"
        )
    if shape.batches != 1:
        raise NvError.NOT_SUPPORTED.error(
            f"SDP is programmed for a batch of {shape.batches} in memory; a batch of more than 1 "
            "must come on the fly from the convolution"
        )
    atom = operation.configuration.atom_bytes
    elements = operation.configuration.atom_elements(precision)
    extents = shape.width, shape.height, ceil_div(shape.lanes, elements)
    surface = registers.surface("SRC", extents, atom)
    if shape.is_point:
        surface = replace(surface, surface_stride=atom)
    cube = operation.dma.read_cube(surface, DTYPES[precision])
    return cube[None, :, :, : shape.lanes]


def _read_operands(operation: Operation, shape: SdpShape, stage: str, rdma: str) -> Operands:
    """Return the operands of a stage in memory, each [height or 1, width or 1, lanes]."""
    registers = operation.registers.get("SDP_RDMA")
    if registers is None or registers.get(f"{rdma}_DISABLE"):
        return Operands(None, None)
    use = registers.get(f"{rdma}_DATA_USE")
    size = 1 + registers.get(f"{rdma}_DATA_SIZE")
    is_surface = bool(registers.get(f"{rdma}_DATA_MODE"))
    parts = 2 if use == 2 else 1  # ALU and multiplier operands are interleaved
    elements = operation.configuration.atom_elements(shape.processing)
    block = elements * size * parts
    surfaces = shape.lanes // elements
    extents = (shape.width, shape.height, surfaces) if is_surface else (1, 1, surfaces)
    surface = registers.surface(stage, extents, block, f"{rdma}_RAM_TYPE")
    if shape.is_point or not is_surface:
        surface = replace(surface, surface_stride=block)
    dtype = np.float16 if shape.processing is Precision.FP16 else np.int16
    cube = operation.dma.read_cube(surface, np.int8 if size == 1 else dtype)
    if parts == 2:
        return Operands(cube[..., 0::2], cube[..., 1::2])
    return Operands(cube, None) if use == 1 else Operands(None, cube)


def apply_x_stage(values: Array, stage: XStage, operands: Operands) -> Array:
    """Run stage X1 or X2 on integers."""
    if not stage.is_active:
        return values
    if not stage.alu.is_bypassed:
        unit = stage.alu
        operand = unit.register if unit.from_register else unit.require(operands.alu)
        shifted = shift_left_saturated(np.asarray(operand, np.int64), stage.alu_shift, 32)
        algorithm = min(stage.algorithm, SUM)  # only stage Y compares
        values = _ALGORITHMS[algorithm](values, shifted)
    unscaled = values
    if not stage.mul.is_bypassed:
        unit = stage.mul
        operand = unit.register if unit.from_register else unit.require(operands.mul)
        values = values * np.asarray(operand, np.int64)
    shifted = shift_right_saturated(values, stage.mul_shift, 32)
    if stage.prelu and not stage.mul.is_bypassed:
        shifted = np.where(unscaled >= 0, saturate(unscaled, 32), shifted)
    return np.maximum(shifted, 0) if stage.relu else shifted


def apply_y_stage(
    values: Array, stage: YStage, operands: Operands, lut: Lut | None, counters: Counters
) -> Array:
    """Run stage Y on integers: multiplication, ALU and lookup table."""
    if not stage.is_active:
        return values
    if not stage.mul.is_bypassed:
        product = values * _y_operand(stage.mul, operands.mul, stage.mul_converter)
        shifted = shift_right_saturated(product, stage.truncate, 32)
        values = np.where(values >= 0, values, shifted) if stage.prelu else shifted
    if not stage.alu.is_bypassed:
        operand = _y_operand(stage.alu, operands.alu, stage.alu_converter)
        values = saturate(_ALGORITHMS[stage.algorithm](values, operand), 32)
    if lut is None:
        return values
    return look_up(values, lut, counters, SDP_STYLE)


def _differ(values: Array, operand: Array) -> Array:
    return np.asarray((values != operand).astype(np.int64))


_ALGORITHMS: tuple[Combine, ...] = (np.maximum, np.minimum, np.add, _differ)
"""ALU algorithms on integers, by the value of the ALU_ALGO field."""


def _y_operand(unit: UnitOperand, operand: np.ndarray | None, converter: YConverter) -> Array:
    """Return an operand of stage Y; one that is read from memory runs through its converter."""
    if unit.from_register:
        return np.asarray(unit.register, np.int64)
    values = unit.require(operand).astype(np.int64)
    if converter.bypassed:
        return values
    return shift_right_saturated(
        (values - converter.offset) * converter.scale, converter.truncate, 32
    )


def convert_output(operation: Operation, values: Array, precision: Precision) -> np.ndarray:
    """Run the output converter on integers: subtract, multiply, shift, clamp."""
    registers = operation.registers["SDP"]
    offset, scale = registers.signed("CVT_OFFSET"), registers.signed("CVT_SCALE")
    narrow = operation.counters.convert(values, (offset, scale, registers.get("CVT_SHIFT")), 17)
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
    extents = shape.width, shape.height, surfaces
    first = registers.surface("DST", extents, atom)
    if shape.is_point:
        first = replace(first, surface_stride=atom)
    return first.batches(shape.batches, registers.word("D_DST_BATCH_STRIDE"))


def check_sdp(operation: Operation) -> None:
    """Check the output before the engines compute it.

    Raises:
        NvdlaError: INVALID_ADDRESS if the output lies outside memory; INVALID_SIZE if it is larger
            than memory.
    """
    shape = _shape(operation)
    if not operation.registers["SDP"].get("OUTPUT_DST"):
        for target in _targets(operation, shape):
            operation.dma.check_target(target)
    elif shape.width * shape.height * shape.lanes > operation.dma.memory_bytes:
        raise NvError.INVALID_SIZE.error(
            f"SDP passes {shape.width * shape.height * shape.lanes} elements to PDP, but memory "
            f"has only {operation.dma.memory_bytes} bytes; check SDP's sizes"
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
