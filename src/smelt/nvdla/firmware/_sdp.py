"""Programming of the SDP engine: bias, scale, elementwise operations, activation, conversion."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla.firmware._lut import write_lut
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MemoryType, OperationType, Precision
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import DataCube, SdpOperation, SdpStage, SdpSurface


class StageType(IntEnum):
    """Active units of a stage: none, multiplier, ALU or both."""

    NONE = 0
    MULTIPLY = 1
    ADD = 2
    BOTH = 3


class StageMode(IntEnum):
    """Source of a stage's operands."""

    PER_LAYER = 0
    """A register holds one operand for the layer."""
    PER_KERNEL = 1
    """Memory holds one operand for each channel."""
    PER_POINT = 2
    """Memory holds one operand for each element."""


class Activation(IntEnum):
    """Activation at the end of a stage."""

    NONE = 0
    RELU = 1
    LUT = 2
    PRELU = 3


_WINOGRAD: Final = 1
"""Convolution mode of a Winograd convolution."""
_ALU_ALGORITHMS, _Y_ALU_ALGORITHMS = 3, 4
"""Numbers of ALU algorithms of the stages X1 and X2, and of Y, which can also compare."""

_STAGES: Final = {"BS": "X1", "BN": "X2", "EW": "Y"}
"""Name of each stage in messages, by its name in registers."""


def _reads_memory(stage: SdpStage) -> bool:
    return bool(stage.enable and stage.type != StageType.NONE and stage.mode != StageMode.PER_LAYER)


class SdpDriver(UnitDriver):
    """The single data point processor (SDP)."""

    op_type: ClassVar[OperationType] = OperationType.SDP
    blocks: ClassVar[tuple[str, ...]] = ("SDP",)
    rdma_block: ClassVar[str | None] = "SDP_RDMA"
    has_lut: ClassVar[bool] = True
    counter_switches: ClassVar[str] = "SDP.D_PERF_ENABLE"

    @override
    def needs_rdma(self, operation: SdpOperation, surface: SdpSurface) -> bool:
        return surface.src_data.type != MemoryType.ON_THE_FLY or any(
            _reads_memory(stage) for stage in (operation.x1_op, operation.x2_op, operation.y_op)
        )

    @override
    def program(
        self, context: OperationContext, operation: SdpOperation, surface: SdpSurface
    ) -> None:
        _check(context, operation, surface)
        if context.is_rdma_needed:
            _program_rdma(context, operation, surface)
        write_lut(context, "SDP", operation.lut_index, operation.src_precision)
        _program_cubes(context, operation, surface)
        _program_x_stage(context, "BS", operation.x1_op)
        _program_x_stage(context, "BN", operation.x2_op)
        _program_y_stage(context, operation.y_op)
        _program_formats(context, operation, surface)


def _check(context: OperationContext, operation: SdpOperation, surface: SdpSurface) -> None:
    """Refuse an operation that the engine cannot run."""
    context.check_cubes(surface)
    context.check_precision(operation.src_precision, "the source's precision")
    context.check_precision(operation.dst_precision, "the destination's precision")
    context.require(operation.batch_num >= 1, "the batch number is 0; it must be at least 1")
    for what, stage, algorithms in (
        ("X1", operation.x1_op, _ALU_ALGORITHMS),
        ("X2", operation.x2_op, _ALU_ALGORITHMS),
        ("Y", operation.y_op, _Y_ALU_ALGORITHMS),
    ):
        if stage.enable:
            _check_stage(context, stage, f"the {what} stage's", algorithms)
    if operation.y_op.enable:
        context.require_support(context.configuration.has_sdp_eltwise, "Y stage")
        if operation.y_op.act == Activation.LUT:
            context.require_support(context.configuration.has_sdp_lut, "lookup table")


def _check_stage(context: OperationContext, stage: SdpStage, prefix: str, algorithms: int) -> None:
    context.check_enum(stage.type, len(StageType), f"{prefix} type")
    context.check_enum(stage.mode, len(StageMode), f"{prefix} mode")
    context.check_enum(stage.act, len(Activation), f"{prefix} activation")
    context.check_enum(stage.alu_type, algorithms, f"{prefix} ALU algorithm")
    if _reads_memory(stage):
        context.check_precision(stage.precision, f"{prefix} precision")


def _process_precision(operation: SdpOperation) -> int:
    """Return the precision of the pipeline.

    It is the source's precision, except for int16 to int8: then it is int8.
    """
    if operation.src_precision == Precision.INT16 and operation.dst_precision == Precision.INT8:
        return int(Precision.INT8)
    return operation.src_precision


def _program_rdma(context: OperationContext, operation: SdpOperation, surface: SdpSurface) -> None:
    """Program the block that reads the source and the operands of the stages."""
    source = surface.src_data
    is_flying = source.type == MemoryType.ON_THE_FLY
    context.write(
        "SDP_RDMA",
        FLYING_MODE=int(is_flying),
        WINOGRAD=int(operation.conv_mode == _WINOGRAD),
        IN_PRECISION=operation.src_precision,
        OUT_PRECISION=operation.dst_precision,
        PROC_PRECISION=_process_precision(operation),
        BATCH_NUMBER=operation.batch_num - 1,
    )
    context.write_extents("SDP_RDMA", source)
    if not is_flying:
        context.write_source("SDP_RDMA", source)
    _program_operand(context, "BRDMA", "BS", operation.x1_op, surface.x1_data)
    _program_operand(context, "NRDMA", "BN", operation.x2_op, surface.x2_data)
    _program_operand(context, "ERDMA", "EW", operation.y_op, surface.y_data)


def _program_operand(
    context: OperationContext, reader: str, stage_name: str, stage: SdpStage, cube: DataCube
) -> None:
    """Program one of the three operand readers, or disable it."""
    if not _reads_memory(stage):
        context.write("SDP_RDMA", **{f"{reader}_DISABLE": 1})
        return
    what = f"the operand of the {_STAGES[stage_name]} stage"
    address = context.resolve_cube(cube, what)
    fields = {
        "DATA_USE": stage.type - 1,  # multipliers, addends or both, in the order of `StageType`
        "DATA_SIZE": int(stage.precision != Precision.INT8),
        "DATA_MODE": int(stage.mode == StageMode.PER_POINT),
        "RAM_TYPE": context.ram_type(cube.type, what),
    }
    context.write("SDP_RDMA", **{f"{reader}_{name}": value for name, value in fields.items()})
    context.write_surface(f"SDP_RDMA.D_{stage_name}", cube, address)


def _program_cubes(context: OperationContext, operation: SdpOperation, surface: SdpSurface) -> None:
    """Program the extents of the cubes, and the destination if it is in memory."""
    context.write_extents("SDP", surface.src_data)
    if surface.dst_data.type == MemoryType.ON_THE_FLY:
        return
    context.write_target("SDP", surface.dst_data)
    if operation.batch_num > 1:
        context.write_word("SDP.D_DST_BATCH_STRIDE", operation.batch_stride)


def _program_units(context: OperationContext, name: str, stage: SdpStage) -> None:
    """Program which units of a stage are active; an X stage ends with ReLU, Y with the table."""
    last, activation = ("LUT", Activation.LUT) if name == "EW" else ("RELU", Activation.RELU)
    fields = {
        "BYPASS": not stage.enable,
        "ALU_BYPASS": stage.type in (StageType.MULTIPLY, StageType.NONE),
        "ALU_ALGO": stage.alu_type,
        "MUL_BYPASS": stage.type in (StageType.ADD, StageType.NONE),
        "MUL_PRELU": stage.act == Activation.PRELU,
        f"{last}_BYPASS": stage.act != activation,
    }
    context.write("SDP", **{f"{name}_{field}": int(value) for field, value in fields.items()})


def _program_x_stage(context: OperationContext, name: str, stage: SdpStage) -> None:
    """Program the stage X1 (``BS``) or X2 (``BN``)."""
    _program_units(context, name, stage)
    if not stage.enable:
        return
    source = int(stage.mode != StageMode.PER_LAYER)
    if stage.type in (StageType.ADD, StageType.BOTH):
        context.write(
            "SDP", **{f"{name}_ALU_SRC": source, f"{name}_ALU_SHIFT_VALUE": stage.shift_value}
        )
    if stage.mode == StageMode.PER_LAYER:
        context.write_signed("SDP", **{f"{name}_ALU_OPERAND": stage.alu_operand})
        context.write_signed("SDP", **{f"{name}_MUL_OPERAND": stage.mul_operand})
    # The multiplier's shift applies even if the multiplier is bypassed.
    context.write("SDP", **{f"{name}_MUL_SRC": source, f"{name}_MUL_SHIFT_VALUE": stage.truncate})


def _program_y_stage(context: OperationContext, stage: SdpStage) -> None:
    """Program the stage Y."""
    _program_units(context, "EW", stage)
    if not stage.enable:
        return
    if stage.type in (StageType.ADD, StageType.BOTH):
        _program_y_operand(context, "ALU", stage)
    if stage.type in (StageType.MULTIPLY, StageType.BOTH):
        _program_y_operand(context, "MUL", stage)
    context.write("SDP", EW_TRUNCATE=stage.truncate)


def _program_y_operand(context: OperationContext, unit: str, stage: SdpStage) -> None:
    """Program the operand of the stage Y's ``ALU`` or ``MUL`` unit."""
    converter = stage.alu_cvt if unit == "ALU" else stage.mul_cvt
    is_register = stage.mode == StageMode.PER_LAYER
    fields = {"SRC": not is_register, "CVT_BYPASS": not converter.enable}
    context.write("SDP", **{f"EW_{unit}_{field}": int(value) for field, value in fields.items()})
    if is_register:
        operand = stage.alu_operand if unit == "ALU" else stage.mul_operand
        context.write_signed("SDP", **{f"EW_{unit}_OPERAND": operand})
    else:
        context.write_converter("SDP", f"EW_{unit}_CVT", converter, "TRUNCATE")


def _program_formats(
    context: OperationContext, operation: SdpOperation, surface: SdpSurface
) -> None:
    """Program the modes, precisions and output converter."""
    context.write(
        "SDP",
        FLYING_MODE=int(surface.src_data.type == MemoryType.ON_THE_FLY),
        OUTPUT_DST=int(surface.dst_data.type == MemoryType.ON_THE_FLY),
        WINOGRAD=int(operation.conv_mode == _WINOGRAD),
        BATCH_NUMBER=operation.batch_num - 1,
        PROC_PRECISION=_process_precision(operation),
        OUT_PRECISION=operation.dst_precision,
    )
    context.write_converter("SDP", "CVT", operation.out_cvt, "SHIFT")
