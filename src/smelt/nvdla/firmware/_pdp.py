"""Programming of the PDP engine: pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla._status import NvError
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MemoryType, OperationType, PdpStatistics, Precision
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import PdpOperation, PdpSurface
    from smelt.nvdla.registers import RegisterFile

_MAX_SPLITS: Final = 64
"""Maximum number of vertical strips that a cube in memory is split into."""
_POOL_MODES: Final = 3
"""Number of pooling modes: average, maximum and minimum."""
_MAX_STRIDE: Final = 8
"""Maximum stride of the window in each direction."""
_ON_THE_FLY, _FROM_MEMORY = 0, 1
_RECIPROCALS: Final = (0x10000, 0x8000, 0x5555, 0x4000, 0x3333, 0x2AAA, 0x2492, 0x2000)
"""Reciprocals 1/1 to 1/8 with 16 fraction bits."""
_HALF_RECIPROCALS: Final = (0x7C00, 0x7800, 0x7555, 0x7400, 0x7266, 0x7155, 0x7092, 0x7000)
"""Reciprocals 1/1 to 1/8 in the engine's 17-bit floating-point format."""


class PdpDriver(UnitDriver):
    """The planar data processor (PDP), for pooling."""

    op_type: ClassVar[OperationType] = OperationType.PDP
    blocks: ClassVar[tuple[str, ...]] = ("PDP",)
    rdma_block: ClassVar[str | None] = "PDP_RDMA"

    @override
    def needs_rdma(self, operation: PdpOperation, surface: PdpSurface) -> bool:
        return surface.src_data.type != MemoryType.ON_THE_FLY

    @override
    def program(
        self, context: OperationContext, operation: PdpOperation, surface: PdpSurface
    ) -> None:
        _check(context, operation, surface)
        if context.is_rdma_needed:
            _program_rdma(context, operation, surface)
        _program_cubes(context, operation, surface)
        _program_function(context, operation)

    @override
    def enable_counters(self, registers: RegisterFile) -> None:
        registers.write_fields("PDP.D_PERF_ENABLE", DMA_EN=1)

    @override
    def count(self, registers: RegisterFile, group: int, runtime_us: int) -> PdpStatistics:
        return PdpStatistics(
            inf_input_num=registers.read("PDP.D_INF_INPUT_NUM"),
            nan_input_num=registers.read("PDP.D_NAN_INPUT_NUM"),
            nan_output_num=registers.read("PDP.D_NAN_OUTPUT_NUM"),
            write_stall=registers.read("PDP.D_PERF_WRITE_STALL"),
            runtime=runtime_us,
        )


def _check(context: OperationContext, operation: PdpOperation, surface: PdpSurface) -> None:
    """Refuse an operation that the engine cannot run."""
    if not context.configuration.has_pdp:
        context.refuse(f"{context.configuration.name} has no PDP", NvError.NOT_SUPPORTED)
    context.require(
        surface.dst_data.type != MemoryType.ON_THE_FLY,
        "the destination must be in memory; no engine reads pooled data on the fly",
    )
    context.check_cube(surface.src_data, "the source")
    context.check_cube(surface.dst_data, "the destination")
    context.check_stored(surface.dst_data, "the destination")
    if context.is_rdma_needed:
        context.check_stored(surface.src_data, "the source")
    context.check_precision(operation.precision, "the precision")
    context.check_enum(operation.pool_mode, _POOL_MODES, "the pooling mode")
    context.check_enum(operation.pool_width, len(_RECIPROCALS), "the kernel width less one")
    context.check_enum(operation.pool_height, len(_RECIPROCALS), "the kernel height less one")
    context.require(
        1 <= operation.stride_x <= _MAX_STRIDE and 1 <= operation.stride_y <= _MAX_STRIDE,
        f"the strides are {operation.stride_x} and {operation.stride_y}; each must be 1 to "
        f"{_MAX_STRIDE}",
    )
    max_splits = _MAX_SPLITS if context.is_rdma_needed else 1
    context.require(
        1 <= operation.split_num <= max_splits,
        f"the number of splits is {operation.split_num}; it must be 1 to {max_splits}"
        + ("" if context.is_rdma_needed else " for data on the fly"),
    )
    context.require(
        operation.precision != Precision.FP16 or not any(operation.padding_value),
        "the padding value is not 0; it must be 0 in half precision",
    )


def _program_rdma(context: OperationContext, operation: PdpOperation, surface: PdpSurface) -> None:
    """Program the block that reads the source."""
    source = surface.src_data
    address = context.resolve_input(source, "the source")
    context.write_extents("PDP_RDMA.D_DATA_CUBE_IN", source)
    context.write_surface("PDP_RDMA.D_SRC", source, address)
    context.write("PDP_RDMA.D_DATA_FORMAT", INPUT_DATA=operation.precision)
    ram_type = context.ram_type(source.type, "the source")
    context.write("PDP_RDMA.D_SRC_RAM_CFG", SRC_RAM_TYPE=ram_type)
    context.write("PDP_RDMA.D_OPERATION_MODE_CFG", SPLIT_NUM=operation.split_num - 1)
    context.write(
        "PDP_RDMA.D_POOLING_KERNEL_CFG",
        KERNEL_WIDTH=operation.pool_width,
        KERNEL_STRIDE_WIDTH=operation.stride_x - 1,
    )
    context.write("PDP_RDMA.D_POOLING_PADDING_CFG", PAD_WIDTH=operation.pad_left)
    _program_partial_input(context, operation, "PDP_RDMA")


def _program_partial_input(context: OperationContext, operation: PdpOperation, block: str) -> None:
    context.write(
        f"{block}.D_PARTIAL_WIDTH_IN",
        PARTIAL_WIDTH_IN_FIRST=max(operation.partial_in_width_first - 1, 0),
        PARTIAL_WIDTH_IN_MID=max(operation.partial_in_width_mid - 1, 0),
        PARTIAL_WIDTH_IN_LAST=max(operation.partial_in_width_last - 1, 0),
    )


def _program_cubes(context: OperationContext, operation: PdpOperation, surface: PdpSurface) -> None:
    """Program the extents of source and destination, and where the destination is."""
    source, target = surface.src_data, surface.dst_data
    context.write_extents("PDP.D_DATA_CUBE_IN", source)
    context.write_extents("PDP.D_DATA_CUBE_OUT", target)
    if context.is_rdma_needed:
        context.write_word("PDP.D_SRC_LINE_STRIDE", source.line_stride)
        context.write_word("PDP.D_SRC_SURFACE_STRIDE", source.surf_stride)
    address = context.resolve_cube(target, "the destination")
    context.write_surface("PDP.D_DST", target, address)
    ram_type = context.ram_type(target.type, "the destination")
    context.write("PDP.D_DST_RAM_CFG", DST_RAM_TYPE=ram_type)
    context.write("PDP.D_DATA_FORMAT", INPUT_DATA=operation.precision)


def _program_function(context: OperationContext, operation: PdpOperation) -> None:
    """Program the method, window, reciprocals and padding."""
    context.write(
        "PDP.D_OPERATION_MODE_CFG",
        POOLING_METHOD=operation.pool_mode,
        FLYING_MODE=_FROM_MEMORY if context.is_rdma_needed else _ON_THE_FLY,
        SPLIT_NUM=operation.split_num - 1,
    )
    _program_partial_input(context, operation, "PDP")
    context.write(
        "PDP.D_PARTIAL_WIDTH_OUT",
        PARTIAL_WIDTH_OUT_FIRST=max(operation.partial_width_first - 1, 0),
        PARTIAL_WIDTH_OUT_MID=max(operation.partial_width_mid - 1, 0),
        PARTIAL_WIDTH_OUT_LAST=max(operation.partial_width_last - 1, 0),
    )
    context.write(
        "PDP.D_POOLING_KERNEL_CFG",
        KERNEL_WIDTH=operation.pool_width,
        KERNEL_HEIGHT=operation.pool_height,
        KERNEL_STRIDE_WIDTH=operation.stride_x - 1,
        KERNEL_STRIDE_HEIGHT=operation.stride_y - 1,
    )
    table = _HALF_RECIPROCALS if operation.precision == Precision.FP16 else _RECIPROCALS
    context.write_word("PDP.D_RECIP_KERNEL_WIDTH", table[operation.pool_width])
    context.write_word("PDP.D_RECIP_KERNEL_HEIGHT", table[operation.pool_height])
    context.write(
        "PDP.D_POOLING_PADDING_CFG",
        PAD_LEFT=operation.pad_left,
        PAD_RIGHT=operation.pad_right,
        PAD_TOP=operation.pad_top,
        PAD_BOTTOM=operation.pad_bottom,
    )
    for number, value in enumerate(operation.padding_value, start=1):
        context.write_signed(f"PDP.D_POOLING_PADDING_VALUE_{number}_CFG", value)
