"""Programming of the PDP engine: pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MemoryType, OperationType, Precision
from smelt.types import override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import PdpOperation, PdpSurface

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
    counter_switches: ClassVar[str] = "PDP.D_PERF_ENABLE"

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


def _check(context: OperationContext, operation: PdpOperation, surface: PdpSurface) -> None:
    """Refuse an operation that the engine cannot run."""
    context.require_support(context.configuration.has_pdp, "PDP")
    context.require(
        surface.dst_data.type != MemoryType.ON_THE_FLY,
        "the destination must be in memory; no engine reads pooled data on the fly",
    )
    context.check_cubes(surface)
    context.check_precision(operation.precision, "the precision")
    context.check_enum(operation.pool_mode, _POOL_MODES, "the pooling mode")
    context.require(
        max(operation.pool_width, operation.pool_height) < len(_RECIPROCALS),
        f"the kernel is {operation.pool_width + 1} x {operation.pool_height + 1} (width, height); "
        f"each must be 1 to {len(_RECIPROCALS)}",
    )
    context.require(
        1 <= operation.stride_x <= _MAX_STRIDE and 1 <= operation.stride_y <= _MAX_STRIDE,
        f"the strides are {operation.stride_x} and {operation.stride_y}; each must be 1 to "
        f"{_MAX_STRIDE}",
    )
    max_splits = _MAX_SPLITS if context.is_rdma_needed else 1
    context.require(
        1 <= operation.split_num <= max_splits,
        f"the number of splits is {operation.split_num}; it must be "
        + (f"1 to {max_splits}" if context.is_rdma_needed else "1 for data on the fly"),
    )
    context.require(
        operation.precision != Precision.FP16 or not any(operation.padding_value),
        f"the padding values are {', '.join(map(str, operation.padding_value))}; in fp16 they must "
        "be 0",
    )


def _program_rdma(context: OperationContext, operation: PdpOperation, surface: PdpSurface) -> None:
    """Program the block that reads the source."""
    source = surface.src_data
    context.write_extents("PDP_RDMA", source, "CUBE_IN_")
    context.write_source("PDP_RDMA", source)
    context.write(
        "PDP_RDMA",
        INPUT_DATA=operation.precision,
        SPLIT_NUM=operation.split_num - 1,
        KERNEL_WIDTH=operation.pool_width,
        KERNEL_STRIDE_WIDTH=operation.stride_x - 1,
        PAD_WIDTH=operation.pad_left,
    )
    _program_partial_input(context, operation, "PDP_RDMA")


def _program_partial_input(context: OperationContext, operation: PdpOperation, block: str) -> None:
    context.write(
        block,
        PARTIAL_WIDTH_IN_FIRST=max(operation.partial_in_width_first - 1, 0),
        PARTIAL_WIDTH_IN_MID=max(operation.partial_in_width_mid - 1, 0),
        PARTIAL_WIDTH_IN_LAST=max(operation.partial_in_width_last - 1, 0),
    )


def _program_cubes(context: OperationContext, operation: PdpOperation, surface: PdpSurface) -> None:
    """Program the extents of source and destination, and where the destination is."""
    source, target = surface.src_data, surface.dst_data
    context.write_extents("PDP", source, "CUBE_IN_")
    context.write_extents("PDP", target, "CUBE_OUT_")
    if context.is_rdma_needed:
        context.write_word("PDP.D_SRC_LINE_STRIDE", source.line_stride)
        context.write_word("PDP.D_SRC_SURFACE_STRIDE", source.surf_stride)
    context.write_target("PDP", target)


def _program_function(context: OperationContext, operation: PdpOperation) -> None:
    """Program the method, window, reciprocals and padding."""
    context.write(
        "PDP",
        INPUT_DATA=operation.precision,
        POOLING_METHOD=operation.pool_mode,
        FLYING_MODE=_FROM_MEMORY if context.is_rdma_needed else _ON_THE_FLY,
        SPLIT_NUM=operation.split_num - 1,
    )
    _program_partial_input(context, operation, "PDP")
    table = _HALF_RECIPROCALS if operation.precision == Precision.FP16 else _RECIPROCALS
    context.write(
        "PDP",
        PARTIAL_WIDTH_OUT_FIRST=max(operation.partial_width_first - 1, 0),
        PARTIAL_WIDTH_OUT_MID=max(operation.partial_width_mid - 1, 0),
        PARTIAL_WIDTH_OUT_LAST=max(operation.partial_width_last - 1, 0),
        KERNEL_WIDTH=operation.pool_width,
        KERNEL_HEIGHT=operation.pool_height,
        KERNEL_STRIDE_WIDTH=operation.stride_x - 1,
        KERNEL_STRIDE_HEIGHT=operation.stride_y - 1,
        RECIP_KERNEL_WIDTH=table[operation.pool_width],
        RECIP_KERNEL_HEIGHT=table[operation.pool_height],
        PAD_LEFT=operation.pad_left,
        PAD_RIGHT=operation.pad_right,
        PAD_TOP=operation.pad_top,
        PAD_BOTTOM=operation.pad_bottom,
    )
    for number, value in enumerate(operation.padding_value, start=1):
        context.write_signed("PDP", **{f"PAD_VALUE_{number}X": value})
