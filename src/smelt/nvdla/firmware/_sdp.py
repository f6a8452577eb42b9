"""Programming of the SDP engine: bias, scale, elementwise operations, activation, conversion."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla._status import NvError
from smelt.nvdla.firmware._lut import write_lut
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MemoryType, OperationType, Precision, SdpStatistics
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import DataCube, SdpOperation, SdpStage, SdpSurface
    from smelt.nvdla.registers import RegisterFile


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
_MULTIPLIERS, _ADDENDS, _PAIRS = 0, 1, 2
"""Values of the DATA_USE fields."""
_DATA_USE: Final = {
    StageType.NONE: _MULTIPLIERS,
    StageType.MULTIPLY: _MULTIPLIERS,
    StageType.ADD: _ADDENDS,
    StageType.BOTH: _PAIRS,
}


def _reads_memory(stage: SdpStage) -> bool:
    return bool(stage.enable and stage.type != StageType.NONE and stage.mode != StageMode.PER_LAYER)


class SdpDriver(UnitDriver):
    """The single data point processor (SDP)."""

    op_type: ClassVar[OperationType] = OperationType.SDP
    blocks: ClassVar[tuple[str, ...]] = ("SDP",)
    rdma_block: ClassVar[str | None] = "SDP_RDMA"

    @override
    def needs_rdma(self, operation: SdpOperation, surface: SdpSurface) -> bool:
        return surface.src_data.type != MemoryType.ON_THE_FLY or any(
            _reads_memory(stage) for stage in (operation.x1_op, operation.x2_op, operation.y_op)
        )

    @override
    def lut_index(self, operation: SdpOperation) -> int:
        return operation.lut_index

    @override
    def program(
        self, context: OperationContext, operation: SdpOperation, surface: SdpSurface
    ) -> None:
        _check(context, operation, surface)
        if context.is_rdma_needed:
            _program_rdma(context, operation, surface)
        if operation.lut_index >= 0 and not context.is_lut_loaded:
            lut = context.read_lut(operation.lut_index)
            write_lut(context, "SDP", lut, operation.src_precision)
        _program_cubes(context, operation, surface)
        _program_x_stage(context, "BS", operation.x1_op)
        _program_x_stage(context, "BN", operation.x2_op)
        _program_y_stage(context, operation.y_op)
        _program_formats(context, operation, surface)

    @override
    def enable_counters(self, registers: RegisterFile) -> None:
        registers.write_fields(
            "SDP.D_PERF_ENABLE",
            PERF_DMA_EN=1,
            PERF_LUT_EN=1,
            PERF_SAT_EN=1,
            PERF_NAN_INF_COUNT_EN=1,
        )

    @override
    def count(self, registers: RegisterFile, group: int, runtime_us: int) -> SdpStatistics:
        return SdpStatistics(
            nan_input_num=registers.read("SDP.D_STATUS_NAN_INPUT_NUM"),
            inf_input_num=registers.read("SDP.D_STATUS_INF_INPUT_NUM"),
            nan_output_num=registers.read("SDP.D_STATUS_NAN_OUTPUT_NUM"),
            wdma_write_stall=registers.read("SDP.D_PERF_WDMA_WRITE_STALL"),
            lut_underflow=registers.read("SDP.D_PERF_LUT_UFLOW"),
            lut_overflow=registers.read("SDP.D_PERF_LUT_OFLOW"),
            lut_hybrid=registers.read("SDP.D_PERF_LUT_HYBRID"),
            lut_le_hit=registers.read("SDP.D_PERF_LUT_LE_HIT"),
            lut_lo_hit=registers.read("SDP.D_PERF_LUT_LO_HIT"),
            saturation_count=registers.read("SDP.D_PERF_OUT_SATURATION"),
            runtime=runtime_us,
        )


def _check(context: OperationContext, operation: SdpOperation, surface: SdpSurface) -> None:
    """Refuse an operation that the engine cannot run."""
    context.check_cube(surface.src_data, "the source")
    context.check_cube(surface.dst_data, "the destination")
    if surface.src_data.type != MemoryType.ON_THE_FLY:
        context.check_stored(surface.src_data, "the source")
    if surface.dst_data.type != MemoryType.ON_THE_FLY:
        context.check_stored(surface.dst_data, "the destination")
    context.check_precision(operation.src_precision, "the source's precision")
    context.check_precision(operation.dst_precision, "the destination's precision")
    context.require(operation.batch_num >= 1, "the batch number is 0; it must be at least 1")
    stages = (operation.x1_op, operation.x2_op, operation.y_op)
    for what, stage, algorithms in zip(
        ("X1", "X2", "Y"),
        stages,
        (_ALU_ALGORITHMS, _ALU_ALGORITHMS, _Y_ALU_ALGORITHMS),
        strict=True,
    ):
        if stage.enable:
            _check_stage(context, stage, f"the {what} stage's", algorithms)
    has_table = operation.y_op.enable and operation.y_op.act == Activation.LUT
    if operation.y_op.enable and not context.configuration.has_sdp_eltwise:
        context.refuse(f"{context.configuration.name} has no Y stage", NvError.NOT_SUPPORTED)
    if has_table and not context.configuration.has_sdp_lut:
        context.refuse(f"{context.configuration.name} has no lookup table", NvError.NOT_SUPPORTED)


def _check_stage(context: OperationContext, stage: SdpStage, prefix: str, algorithms: int) -> None:
    context.check_enum(stage.type, len(StageType), f"{prefix} type")
    context.check_enum(stage.mode, len(StageMode), f"{prefix} mode")
    context.check_enum(stage.act, len(Activation), f"{prefix} activation")
    context.check_enum(stage.alu_type, algorithms, f"{prefix} algorithm")
    context.check_precision(stage.precision, f"{prefix} precision") if _reads_memory(stage) else 0


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
        "SDP_RDMA.D_FEATURE_MODE_CFG",
        FLYING_MODE=int(is_flying),
        WINOGRAD=int(operation.conv_mode == _WINOGRAD),
        IN_PRECISION=operation.src_precision,
        OUT_PRECISION=operation.dst_precision,
        PROC_PRECISION=_process_precision(operation),
        BATCH_NUMBER=operation.batch_num - 1,
    )
    context.write_extents("SDP_RDMA.D_DATA_CUBE", source)
    if not is_flying:
        address = context.resolve_input(source, "the source")
        context.write_surface("SDP_RDMA.D_SRC", source, address)
        ram_type = context.ram_type(source.type, "the source")
        context.write("SDP_RDMA.D_SRC_DMA_CFG", SRC_RAM_TYPE=ram_type)
    _program_operand(context, "BRDMA", "BS", operation.x1_op, surface.x1_data)
    _program_operand(context, "NRDMA", "BN", operation.x2_op, surface.x2_data)
    _program_operand(context, "ERDMA", "EW", operation.y_op, surface.y_data)


def _program_operand(
    context: OperationContext, reader: str, stage_name: str, stage: SdpStage, cube: DataCube
) -> None:
    """Program one of the three operand readers, or disable it."""
    if not _reads_memory(stage):
        context.write(f"SDP_RDMA.D_{reader}_CFG", **{f"{reader}_DISABLE": 1})
        return
    what = f"the operand of {stage_name}"
    address = context.resolve_cube(cube, what)
    fields = {
        "DATA_USE": _DATA_USE[StageType(stage.type)],
        "DATA_SIZE": int(stage.precision != Precision.INT8),
        "DATA_MODE": int(stage.mode == StageMode.PER_POINT),
        "RAM_TYPE": context.ram_type(cube.type, what),
    }
    context.write(
        f"SDP_RDMA.D_{reader}_CFG", **{f"{reader}_{name}": value for name, value in fields.items()}
    )
    context.write_surface(f"SDP_RDMA.D_{stage_name}", cube, address)


def _program_cubes(context: OperationContext, operation: SdpOperation, surface: SdpSurface) -> None:
    """Program the extents of the cubes, and the destination if it is in memory."""
    source, target = surface.src_data, surface.dst_data
    context.write_extents("SDP.D_DATA_CUBE", source)
    if target.type == MemoryType.ON_THE_FLY:
        return
    address = context.resolve_cube(target, "the destination")
    context.write_surface("SDP.D_DST", target, address)
    ram_type = context.ram_type(target.type, "the destination")
    context.write("SDP.D_DST_DMA_CFG", DST_RAM_TYPE=ram_type)
    if operation.batch_num > 1:
        context.write_word("SDP.D_DST_BATCH_STRIDE", operation.batch_stride)


def _program_x_stage(context: OperationContext, name: str, stage: SdpStage) -> None:
    """Program the stage X1 (``BS``) or X2 (``BN``)."""
    context.write(
        f"SDP.D_DP_{name}_CFG",
        **{
            f"{name}_BYPASS": int(not stage.enable),
            f"{name}_ALU_BYPASS": int(stage.type in (StageType.MULTIPLY, StageType.NONE)),
            f"{name}_ALU_ALGO": stage.alu_type,
            f"{name}_MUL_BYPASS": int(stage.type in (StageType.ADD, StageType.NONE)),
            f"{name}_MUL_PRELU": int(stage.act == Activation.PRELU),
            f"{name}_RELU_BYPASS": int(stage.act != Activation.RELU),
        },
    )
    if not stage.enable:
        return
    source = int(stage.mode != StageMode.PER_LAYER)
    if stage.type in (StageType.ADD, StageType.BOTH):
        context.write(
            f"SDP.D_DP_{name}_ALU_CFG",
            **{f"{name}_ALU_SRC": source, f"{name}_ALU_SHIFT_VALUE": stage.shift_value},
        )
    if stage.mode == StageMode.PER_LAYER:
        context.write_signed(f"SDP.D_DP_{name}_ALU_SRC_VALUE", stage.alu_operand)
        context.write_signed(f"SDP.D_DP_{name}_MUL_SRC_VALUE", stage.mul_operand)
    # The multiplier's shift applies even if the multiplier is bypassed.
    context.write(
        f"SDP.D_DP_{name}_MUL_CFG",
        **{f"{name}_MUL_SRC": source, f"{name}_MUL_SHIFT_VALUE": stage.truncate},
    )


def _program_y_stage(context: OperationContext, stage: SdpStage) -> None:
    """Program the stage Y."""
    context.write(
        "SDP.D_DP_EW_CFG",
        EW_BYPASS=int(not stage.enable),
        EW_ALU_BYPASS=int(stage.type in (StageType.MULTIPLY, StageType.NONE)),
        EW_ALU_ALGO=stage.alu_type,
        EW_MUL_BYPASS=int(stage.type in (StageType.ADD, StageType.NONE)),
        EW_MUL_PRELU=int(stage.act == Activation.PRELU),
        EW_LUT_BYPASS=int(stage.act != Activation.LUT),
    )
    if not stage.enable:
        return
    if stage.type in (StageType.ADD, StageType.BOTH):
        _program_y_operand(context, "ALU", stage)
    if stage.type in (StageType.MULTIPLY, StageType.BOTH):
        _program_y_operand(context, "MUL", stage)
    context.write("SDP.D_DP_EW_TRUNCATE_VALUE", EW_TRUNCATE=stage.truncate)


def _program_y_operand(context: OperationContext, unit: str, stage: SdpStage) -> None:
    """Program the operand of the stage Y's ``ALU`` or ``MUL`` unit."""
    converter = stage.alu_cvt if unit == "ALU" else stage.mul_cvt
    is_register = stage.mode == StageMode.PER_LAYER
    context.write(
        f"SDP.D_DP_EW_{unit}_CFG",
        **{
            f"EW_{unit}_SRC": int(not is_register),
            f"EW_{unit}_CVT_BYPASS": int(not converter.enable),
        },
    )
    if is_register:
        operand = stage.alu_operand if unit == "ALU" else stage.mul_operand
        context.write_signed(f"SDP.D_DP_EW_{unit}_SRC_VALUE", operand)
        return
    context.write_signed(f"SDP.D_DP_EW_{unit}_CVT_OFFSET_VALUE", converter.offset)
    context.write_signed(f"SDP.D_DP_EW_{unit}_CVT_SCALE_VALUE", converter.scale)
    context.write_word(f"SDP.D_DP_EW_{unit}_CVT_TRUNCATE_VALUE", converter.truncate)


def _program_formats(
    context: OperationContext, operation: SdpOperation, surface: SdpSurface
) -> None:
    """Program the modes, precisions and output converter."""
    context.write(
        "SDP.D_FEATURE_MODE_CFG",
        FLYING_MODE=int(surface.src_data.type == MemoryType.ON_THE_FLY),
        OUTPUT_DST=int(surface.dst_data.type == MemoryType.ON_THE_FLY),
        WINOGRAD=int(operation.conv_mode == _WINOGRAD),
        BATCH_NUMBER=operation.batch_num - 1,
    )
    context.write(
        "SDP.D_DATA_FORMAT",
        PROC_PRECISION=_process_precision(operation),
        OUT_PRECISION=operation.dst_precision,
    )
    context.write_signed("SDP.D_CVT_OFFSET", operation.out_cvt.offset)
    context.write_signed("SDP.D_CVT_SCALE", operation.out_cvt.scale)
    context.write_word("SDP.D_CVT_SHIFT", operation.out_cvt.truncate)
